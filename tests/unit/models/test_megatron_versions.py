"""What differs between releases of megatron-core, in whichever is installed, and in the manner of the others."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.distributed import distributed_data_parallel
from megatron.core.pipeline_parallel import schedules
from megatron.core.transformer import transformer_layer
from megatron.core.transformer.spec_utils import build_module
from torch import Tensor, nn

from pretrain.models import megatron_versions
from pretrain.models.megatron_versions import MtpNames, data_parallel, feed_forward_builder, gradients_of_norm


class _FeedForward(nn.Module):
    def __init__(self, config: object) -> None:
        super().__init__()
        self.config = config


def test_a_feed_forward_layer_is_built_from_the_config_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    config = object()
    monkeypatch.setattr(transformer_layer, "MlpBuilder", object, raising=False)
    build = feed_forward_builder(_FeedForward)
    made = build(config=config, pg_collection=object(), is_mtp_layer=False, name="decoder.layers.0.mlp")
    assert isinstance(made, _FeedForward)
    assert made.config is config
    monkeypatch.delattr(transformer_layer, "MlpBuilder")
    assert build_module(feed_forward_builder(_FeedForward), config=config).config is config


class _Optimizer:
    def gradients(self) -> list[Tensor]:
        return [torch.ones(2)]


@pytest.mark.parametrize("name", ["get_main_grads_for_grad_norm", "get_grads_for_grad_norm"])
def test_the_gradients_of_the_norm_are_found_under_either_name(name: str) -> None:
    kind = type("Optimizer", (_Optimizer,), {name: _Optimizer.gradients})
    (found,) = gradients_of_norm(kind())
    assert found.tolist() == [1, 1]


class _Warning:
    def __init__(self, *_: object) -> None:
        log = logging.getLogger(distributed_data_parallel.__name__)
        log.warning("DistributedDataParallel: full_param_layout not provided with use_distributed_optimizer=True.")
        log.warning("another")


def test_buffers_that_are_left_to_data_parallelism_are_no_cause_for_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(megatron_versions, "DistributedDataParallel", _Warning)
    settings: Any = None
    with caplog.at_level(logging.WARNING):
        data_parallel(None, settings, nn.Identity())
        _Warning()
    assert [record.getMessage().split()[0] for record in caplog.records] == [
        "another",
        "DistributedDataParallel:",
        "another",
    ]


class _MtpLayer(MtpNames, nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer_layer = nn.Identity()


def test_schedules_tell_the_layer_of_a_multi_token_prediction_the_micro_batch() -> None:
    layer = _MtpLayer()
    model: Any = SimpleNamespace(decoder=SimpleNamespace(layers=[]), mtp=SimpleNamespace(layers=[layer]))
    schedules.set_current_microbatch(model, 3)
    assert layer.transformer_layer.current_microbatch == 3
