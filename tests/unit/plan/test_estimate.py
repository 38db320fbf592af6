"""Parameters, operations and peaks."""

from typing import Any

import pytest

from pretrain.config.model import Model
from pretrain.plan.estimate import (
    num_moments,
    num_parameters,
    state_bytes,
    training_flops_per_token,
)
from pretrain.plan.hardware import PEAKS, peak_flops
from pretrain.plan.layout_names import parse
from tests.unit.plan.configs import config


def model(**changes: object) -> Model:
    shape = {"layers": 1, "hidden": 4, "heads": 2, "sequence_length": 8, "vocabulary": 10, "vocabulary_multiple": 16}
    return Model.model_validate({**shape, **changes})


class TestParameters:
    def test_counted_by_hand(self) -> None:
        # qkv 4x12+12, output 4x4+4, feed-forward 4x16+16 and 16x4+4, two norms 8+8, final norm 8, 10 + 8 rows of 4.
        assert num_parameters(model(), padded=False) == 60 + 20 + 80 + 68 + 16 + 8 + 18 * 4

    def test_padding_adds_rows(self) -> None:
        assert num_parameters(model()) - num_parameters(model(), padded=False) == 6 * 4

    def test_an_untied_head_adds_a_second_matrix(self) -> None:
        assert num_parameters(model(tied_head=False)) - num_parameters(model()) == 16 * 4

    def test_post_norm_has_no_final_norm(self) -> None:
        assert num_parameters(model()) - num_parameters(model(norm="post")) == 2 * 4

    def test_heads_wider_than_the_model(self) -> None:
        # Four heads' width more: 4 rows in each of q, k, v and the output, 3 x 4 biases.
        wide = num_parameters(model(head_dim=4)) - num_parameters(model())
        assert wide == 4 * 4 * 4 + 3 * 4


class TestOperations:
    def test_counted_by_hand(self) -> None:
        # Forward multiply-adds per token: 192 weights of the layer, 10 logits of 4; scores and values on 4.5 keys
        # (mean of 1..8), 4 wide. Two operations each, backward twice forward.
        assert training_flops_per_token(model()) == 3 * 2 * (192 + 40 + 2 * 4.5 * 4)

    def test_a_band_costs_less(self) -> None:
        banded = model(layers=2, attention={"pattern": ["dense", "banded"], "window": 2})
        dense = model(layers=2)
        # One of the two layers sees (1 + 7 * 2) / 8 keys and not 4.5.
        saved = 3 * 4 * (4.5 - 15 / 8) * 4
        assert training_flops_per_token(dense) - training_flops_per_token(banded) == pytest.approx(saved)

    def test_padding_rows_are_no_work_of_the_model(self) -> None:
        assert training_flops_per_token(model()) == training_flops_per_token(model(vocabulary_multiple=1024))


class TestPeaks:
    @pytest.mark.parametrize(
        ("name", "bf16"),
        [
            ("NVIDIA A100-SXM4-80GB", 312e12),
            ("A100-SXM4-40GB", 312e12),
            ("NVIDIA A100-PCIE-40GB", 312e12),
            ("NVIDIA A100 80GB PCIe", 312e12),
            ("NVIDIA H100 80GB HBM3", 989.4e12),
            ("NVIDIA H100 PCIe", 756e12),
            ("NVIDIA H100 NVL", 835e12),
            ("NVIDIA H200", 989.4e12),
            ("NVIDIA GH200 480GB", 989.4e12),
            ("NVIDIA GH200 144G HBM3e", 989.4e12),
            ("NVIDIA L4", 121e12),
            ("NVIDIA L40S", 362.05e12),
            ("NVIDIA B200", 2250e12),
        ],
    )
    def test_known_devices(self, name: str, bf16: float) -> None:
        assert peak_flops(name, "bf16") == peak_flops(name, "fp16") == bf16

    def test_fp32_is_slower_than_bf16(self) -> None:
        assert all(peak.bf16_flops is None or peak.fp32_flops < peak.bf16_flops for peak in PEAKS)
        assert peak_flops("NVIDIA A100-SXM4-80GB", "fp32") == 19.5e12

    def test_v100_has_no_bf16(self) -> None:
        assert peak_flops("Tesla V100-SXM2-32GB", "bf16") is None
        assert peak_flops("Tesla V100-SXM2-32GB", "fp32") == 15.7e12
        assert peak_flops("Tesla V100-SXM2-32GB", "fp16") == 125e12

    @pytest.mark.parametrize(
        "name", ["cpu", "", "NVIDIA A10G", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM-64GB", "NVIDIA L40X"]
    )
    def test_unknown_devices_and_slices_have_no_peak(self, name: str) -> None:
        assert peak_flops(name, "bf16") is None
        assert peak_flops(name, "fp32") is None


# layout, precision -> bytes per parameter: weights, gradients, optimizer
STATES = {
    ("dp4", "fp32"): (4, 4, 8),
    ("dp4", "bf16"): (2, 4, 12),
    ("dp4+zero1", "fp32"): (4, 4, 2),
    ("dp4+zero1", "bf16"): (2, 4, 3),
    ("dp4+zero1+deepspeed", "bf16"): (2, 4, 3),
    ("dp4+zero1+deepspeed", "fp32"): (4, 4, 3),
    ("dp4+zero2", "fp16"): (2, 1, 3),
    ("dp4+zero3", "bf16"): (0.5, 1, 3),
    ("dp1+zero1", "bf16"): (2, 4, 12),
}


@pytest.mark.parametrize(("layout", "precision"), STATES)
def test_state_bytes_counted_by_hand(layout: str, precision: str) -> None:
    """tests/multirank/test_zero_memory.py measures that they are true."""
    found = state_bytes(1e6, parse(layout, zero=0), precision)
    assert (found.weights, found.gradients, found.optimizer) == tuple(1e6 * x for x in STATES[layout, precision])
    assert found.total == sum(1e6 * x for x in STATES[layout, precision])


@pytest.mark.parametrize(
    ("optimizer", "layout", "precision", "expected"),
    [
        ({}, "dp4+zero1", "bf16", 3),
        ({"name": "lamb"}, "dp4+zero1", "fp32", 2),
        ({"name": "adafactor"}, "dp4+zero1", "fp32", 0),
        ({"name": "adafactor"}, "dp4+zero1", "bf16", 1),
        ({"name": "adafactor"}, "dp4+zero3", "fp32", 1),
        ({"name": "adafactor", "beta1": 0.9}, "dp4+zero3", "fp32", 2),
    ],
)
def test_optimizer_bytes_per_parameter(optimizer: dict[str, Any], layout: str, precision: str, expected: float) -> None:
    moments = num_moments(config(optimizer=optimizer).optimizer)
    assert state_bytes(1e6, parse(layout, zero=0), precision, moments).optimizer == 1e6 * expected
