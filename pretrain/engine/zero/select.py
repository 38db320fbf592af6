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
from pretrain.layout.layout import Layout
from pretrain.models.placement import Parameter


def creating(config: RunConfig, groups: Groups) -> AbstractContextManager[Any]:
    """Where the model chunks that `make_sharding` gets are to be made."""
    if not config.parallel.shards_by_deepspeed:
        return nullcontext()
    deepspeed_setup.join()
    if config.parallel.zero < 3:
        return nullcontext()
    from pretrain.engine.zero import stage3

    return stage3.creating(config, groups)


def make_sharding(
    *, config: RunConfig, layout: Layout, groups: Groups, megatron: TransformerConfig, chunks: Sequence[nn.Module],
    parameters: Sequence[Parameter], device: torch.device,
) -> Sharding:  # fmt: skip
    """Shares gradients and optimizer states of `chunks`, whose `parameters` these are, as the config asks."""
    if not config.parallel.shards_by_deepspeed:
        return MegatronSharding(
            config=config,
            layout=layout,
            groups=groups,
            megatron=megatron,
            chunks=chunks,
            parameters=parameters,
            device=device,
        )
    if config.parallel.zero < 3:
        from pretrain.engine.zero.stage12 import Stage12

        return Stage12(config, groups, chunks, parameters, device)
    from pretrain.engine.zero.stage3 import Stage3

    return Stage3(config, groups, chunks, parameters, device)
