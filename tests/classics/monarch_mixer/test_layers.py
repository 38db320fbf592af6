"""Monarch Mixer: its layer against dense matrices written out, padding that changes nothing, the same on every
layout."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pretrain.attention.core import AttentionInputs
from pretrain.classics.monarch_mixer.modules import decays, positional_features
from tests.helpers.families import family_config, train_family
from tests.helpers.hf import randomise
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import LENGTH, build_engine

TOLERANCE = 1e-5
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2pp2": {"tensor": 2, "pipeline": 2},
    "tp4": {"tensor": 4},
    "pp2dp2+vp2": {"pipeline": 2, "virtual": 2},
}
MORE: dict[str, dict[str, Any]] = {
    "tp2pp2+full": {"tensor": 2, "pipeline": 2, "recompute": "full"},
    "tp2dp2+zero1": {"tensor": 2, "zero": 1},
    "dp4+zero2": {"zero": 2, "zero_engine": "deepspeed"},
    "tp2dp2+zero3": {"tensor": 2, "zero": 3, "zero_engine": "deepspeed"},
    "pp2dp2+zero1+deepspeed": {"pipeline": 2, "zero": 1, "zero_engine": "deepspeed"},
}
ROWS, SHOWN = 3, (LENGTH, LENGTH - 5, 7)


def _filter(weights: dict[str, Tensor], name: str) -> Tensor:
    """[H, n, n] the matrix of each channel, entry by entry."""
    channels = len(weights[f"{name}.skip"])
    features = positional_features(LENGTH, weights[f"{name}.before.first"].shape[1], torch.device("cpu")).double()
    decay = decays(LENGTH, channels, torch.device("cpu")).double()
    made = {}
    for direction in ("before", "after"):
        x = features
        for layer in ("first", "second", "third"):
            matrix, bias = weights[f"{name}.{direction}.{layer}"], weights[f"{name}.{direction}.{layer}_bias"]
            x = torch.sin(weights[f"{name}.frequency"] * (x @ matrix.T + bias))
        made[direction] = (x @ weights[f"{name}.{direction}.last"].T * decay).T
    rows = []
    for i in range(LENGTH):
        entries = [made["before"][:, i - j] if j <= i else made["after"][:, j - i - 1] for j in range(LENGTH)]
        rows.append(torch.stack(entries, dim=1))
    return torch.stack(rows, dim=1) + torch.diag_embed(weights[f"{name}.skip"][:, None].expand(-1, LENGTH))


def _dense(weights: dict[str, Tensor], x_SBH: Tensor, shown_SB1: Tensor) -> Tensor:
    """A layer of plain matrices, in double precision."""

    def mixed(name: str, x: Tensor) -> Tensor:
        return torch.einsum("hij,jbh->ibh", _filter(weights, f"self_attention.{name}"), x)

    def named(name: str) -> Tensor:
        return weights[f"self_attention.{name}"]

    projected = (x_SBH @ named("linear_qkv.weight").T + named("linear_qkv.bias")) * shown_SB1
    before = [torch.cat((torch.zeros_like(projected[:n]), projected))[: len(projected)] for n in (2, 1, 0)]
    short = sum(named("short.weight")[:, n] * x for n, x in enumerate(before)) + named("short.bias")
    a, b, v = (short[..., n::3] for n in range(3))
    y = b * mixed("filter", a * v * shown_SB1) + mixed("residual_filter", x_SBH * shown_SB1)
    mixed_SBH = y @ named("linear_proj.weight").T + named("linear_proj.bias")
    gates, out = weights["mlp.gates.weight"], weights["mlp.out.weight"]
    features, halves = len(gates) // 2, (0, 1)
    first = torch.block_diag(*(gates[n * features :][:features, kind] for kind in halves for n in halves))
    second = torch.block_diag(*out.unflatten(0, (4, -1)))
    gate, value = (mixed_SBH @ first.T).chunk(2, dim=-1)
    activated = torch.nn.functional.gelu(gate, approximate="tanh")
    residual = mixed_SBH + (activated * value) @ second.T + weights["mlp.out.bias"]
    norm = weights["mlp_bda.norm.weight"], weights["mlp_bda.norm.bias"]
    return torch.nn.functional.layer_norm(residual, residual.shape[-1:], *norm, eps=1e-12)


def _against_dense() -> None:
    engine = build_engine(family_config("monarch_mixer"), train=False)
    randomise(engine)
    layer = _first_layer(engine)
    torch.manual_seed(0)
    x = torch.randn(LENGTH, ROWS, 64)
    weight_of_sum = torch.randn(LENGTH, ROWS, 64)
    shown_BS = torch.arange(LENGTH) < torch.tensor(SHOWN)[:, None]
    inputs = AttentionInputs(positions_BS=torch.arange(LENGTH).expand(ROWS, -1), key_mask_BK=shown_BS)
    ours = x.clone().requires_grad_()
    for parameter in layer.parameters():
        parameter.grad = None
        parameter.requires_grad_(True)
    mixed, bias = layer.self_attention(ours, attention_mask=inputs)
    hidden = layer.self_attn_bda(True, False)((mixed, bias), ours, 0.0)
    found = layer.mlp_bda(True, False)(layer.mlp(hidden), hidden, 0.0)
    (found * weight_of_sum * shown_BS.T[..., None]).sum().backward()

    weights = {name: value.detach().double().requires_grad_() for name, value in layer.named_parameters()}
    theirs = x.double().requires_grad_()
    expected = _dense(weights, theirs, shown_BS.T[..., None].double())
    (expected * weight_of_sum * shown_BS.T[..., None]).sum().backward()
    counted = shown_BS.T
    _close(found[counted], expected[counted], "output")
    _close(ours.grad, theirs.grad, "input")
    for name, value in layer.named_parameters():
        _close(value.grad, weights[name].grad, name)


def _first_layer(engine: Any) -> Any:
    (chunk,) = engine.bare
    return chunk.decoder.layers[0]


def _close(found: Any, expected: Any, what: str) -> None:
    largest = expected.abs().max().item()
    assert largest > 0, f"{what} is tested"
    assert (found.double() - expected).abs().max().item() <= 3e-5 * largest, what


def test_a_layer_is_that_of_dense_matrices_and_so_is_every_gradient() -> None:
    run_ranks(1, _against_dense)


def _rows_in_longer_ones() -> None:
    engine = build_engine(family_config("monarch_mixer"), train=False)
    randomise(engine)
    layer, short = _first_layer(engine), 9
    torch.manual_seed(1)
    x = torch.randn(LENGTH, 2, 64)

    def mixed(length: int) -> Tensor:
        shown = (torch.arange(length) < short).expand(2, -1)
        inputs = AttentionInputs(positions_BS=torch.arange(length).expand(2, -1), key_mask_BK=shown)
        out: Tensor = layer.self_attention(x[:length], attention_mask=inputs)[0][:short]
        return out

    with torch.no_grad():
        assert torch.allclose(mixed(short), mixed(LENGTH), atol=1e-6)
        assert torch.allclose(mixed(short), mixed(short + 4), atol=1e-6)


def test_padding_changes_no_row() -> None:
    run_ranks(1, _rows_in_longer_ones)


def _curves(parallels: list[dict[str, Any]], more: dict[str, Any]) -> list[Any]:
    found = []
    for parallel in parallels:
        config = family_config("monarch_mixer", parallel=parallel, model=more)
        found.append(train_family(build_engine(config), range(1, 5)))
        meet_again()
    return found


def _departures(layouts: dict[str, dict[str, Any]], **more: Any) -> dict[str, float]:
    """Largest difference of losses and gradient norms from one rank."""
    (expected,) = run_ranks(1, _curves, [{}], more)[0]
    curves = run_ranks(4, _curves, list(layouts.values()), more)[0]
    assert np.ptp(np.array(expected)[:, 0]) > 1e-3, "weights change"
    return {name: np.abs(np.array(curve) - expected).max() for name, curve in zip(layouts, curves, strict=True)}


@pytest.mark.slow
def test_it_trains_alike_on_every_layout_with_dropout() -> None:
    departures = _departures(LAYOUTS | MORE, dropout=0.1, ffn_dropout=0.1)
    assert max(departures.values()) <= TOLERANCE, departures
