"""The config's choice of sharding. DeepSpeed is imported only where it is chosen: that takes seconds."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.engine.zero import deepspeed_setup
from pretrain.engine.zero.base import Sharding
from pretrain.engine.zero.megatron import MegatronSharding
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.model_spec.parameters import num_rank_parameters
from pretrain.models.placement import Parameter


def model_init(config: RunConfig, groups: Groups) -> AbstractContextManager[Any]:
    """The context in which the model chunks for `make_sharding` must be created."""
    if not config.parallel.shards_by_deepspeed:
        return nullcontext()
    deepspeed_setup.join()
    if config.parallel.zero < 3:
        return nullcontext()
    from pretrain.engine.zero.partitioned_init import partitioned_init

    return partitioned_init(config, groups)


def make_sharding(
    *, config: RunConfig, layout: Layout, groups: Groups, megatron: TransformerConfig, chunks: Sequence[nn.Module],
    generator_chunks: Sequence[nn.Module], parameters: Sequence[Parameter], device: torch.device,
) -> Sharding:  # fmt: skip
    """Shards gradients and optimizer state of `chunks` and of those of a generator, which have these `parameters`, by
    `parallel.zero` and `parallel.zero_engine`."""
    if not config.parallel.shards_by_deepspeed:
        return MegatronSharding(
            config=config,
            layout=layout,
            groups=groups,
            megatron=megatron,
            chunks=chunks,
            generator_chunks=generator_chunks,
            parameters=parameters,
            device=device,
        )
    for stage in range(layout.pipeline):
        if not num_rank_parameters(config.model, layout, stage, trained=True):
            raise ConfigError(
                f"finetune.train={config.finetune.train} trains nothing on pipeline stage {stage}, where DeepSpeed "
                "needs a parameter: set parallel.zero_engine=megatron with parallel.zero=1, or parallel.pipeline=1"
            )
    arguments: dict[str, Any] = {
        "config": config,
        "groups": groups,
        "chunks": chunks,
        "generator_chunks": generator_chunks,
        "parameters": parameters,
        "device": device,
    }
    if config.parallel.zero < 3:
        from pretrain.engine.zero.stage12 import Stage12

        return Stage12(**arguments)
    from pretrain.engine.zero.stage3 import Stage3

    return Stage3(**arguments)
