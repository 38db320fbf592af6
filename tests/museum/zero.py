"""Faults between data ranks, and of sharded optimizers."""

from typing import Any

import pytest
from megatron.core import parallel_state
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor

from pretrain.engine.megatron import state
from pretrain.engine.zero import gradient_norm
from pretrain.engine.zero.megatron import MegatronSharding
from pretrain.engine.zero.stage12 import Stage12
from tests.helpers import faults, hidden_faults
from tests.museum.exhibit import Exhibit
from tests.museum.tensor import DROPOUT
from tests.museum.verifying import Verify


def last_micro_batch_alone(patch: pytest.MonkeyPatch) -> None:
    """A backward pass drops what those before it have accumulated."""
    begins = Stage12._backward_begins

    def from_nothing(self: Stage12, chunk: Any) -> None:
        for group in self.optimizer.averaged_gradients:
            self.optimizer.averaged_gradients[group] = None
        begins(self, chunk)

    patch.setattr(Stage12, "_backward_begins", from_nothing)


def replicas_initialised_by_their_rank(patch: pytest.MonkeyPatch) -> None:
    fill = state.fill
    patch.setattr(
        state, "fill", lambda spec, seed, piece: fill(spec, seed + parallel_state.get_data_parallel_rank(), piece)
    )


def norm_of_unreduced_shards(patch: pytest.MonkeyPatch) -> None:
    norm = MegatronSharding.norm

    def of_all(self: MegatronSharding) -> Tensor:
        if not isinstance(self.optimizers[0], DistributedOptimizer):
            return norm(self)
        every = [parameter.value.main_grad for parameter in self._parameters]
        return gradient_norm.norm(every, self._groups.tensor_group, self._device)

    patch.setattr(MegatronSharding, "norm", of_all)


def gradients_doubled_by_each_micro_batch(patch: pytest.MonkeyPatch) -> None:
    def doubled(self: MegatronSharding, chunk: Any, output: Any) -> None:
        chunk.scale_gradients(2.0)

    patch.setattr(MegatronSharding, "forwarded", doubled)


ADAPTIVE = {"name": "lamb", "weight_decay": 0.01, "learning_rate": 1e-3}

EXHIBITS = [
    Exhibit(
        group="zero",
        title="Replicas initialise their shards with the random numbers of their own rank",
        threads=("allenai/OLMo-core#319",),
        effect="each replica a model of its own, until a restart",
        plant=replicas_initialised_by_their_rank,
        finder=Verify(layout="dp2+zero0", step=0, quantity="initial weights", parameter="weight", stages=(0,)),
    ),
    Exhibit(
        group="zero",
        title="ZeRO-2 keeps the gradient of the last micro-batch only",
        threads=("allenai/open-instruct#1498", "huggingface/accelerate#3877"),
        effect="loss curves differ wildly between accumulation steps",
        plant=last_micro_batch_alone,
        finder=Verify(layout="dp2+zero2", quantity="gradient", parameter=".", stages=(0,)),
    ),
    Exhibit(
        group="zero",
        title="The gradient norm counts shards that were not reduced",
        threads=("karpathy/llm.c#524",),
        effect="one shard of the norm right",
        plant=norm_of_unreduced_shards,
        finder=Verify(layout="dp2+zero1", quantity="gradient norm"),
    ),
    Exhibit(
        group="zero",
        title="Accumulated gradients are doubled by each micro-batch",
        threads=("NVIDIA/Megatron-LM#6660",),
        effect="gradients 2^N times too large after N micro-batches",
        plant=gradients_doubled_by_each_micro_batch,
        finder=Verify(layout="dp2", quantity="gradient", parameter=".", stages=(0,)),
    ),
    Exhibit(
        group="zero",
        title="Sharded gradients are divided by the number of ranks again",
        threads=("verl-project/verl-SpeCo#29",),
        effect="the learning rate is in effect that many times smaller; clipping hides it at first",
        plant=faults.zero_divides_again,
        finder=Verify(layout="dp2+zero1", quantity="gradient", parameter=".", stages=(0,)),
    ),
    Exhibit(
        group="zero",
        title="Updated shards are not gathered: each data rank computes with its own",
        threads=("NVIDIA/Megatron-LM#950",),
        effect="weights of the step before are used",
        plant=faults.updates_not_shared,
        finder=Verify(layout="dp2+zero1", quantity="replicas", parameter=".", stages=(0,)),
    ),
    Exhibit(
        group="zero",
        title="One parameter group keeps its first learning rate",
        threads=("deepspeedai/DeepSpeed#7969", "deepspeedai/DeepSpeed#8171"),
        effect="groups train at another rate than was set",
        plant=hidden_faults.rate_of_a_group_kept,
        finder=Verify(layout="dp2+zero2", step=2, quantity="update", parameter=".", stages=(0,)),
    ),
    Exhibit(
        group="zero",
        title="LAMB's trust ratio is that of a rank's shard",
        threads=("deepspeedai/DeepSpeed#490",),
        effect="hyperparameters tuned elsewhere do not carry over",
        plant=faults.wholes_not_summed,
        finder=Verify(
            layout="dp2+zero2", quantity="update", parameter=".", stages=(0,), sections={"optimizer": ADAPTIVE}
        ),
    ),
    Exhibit(
        group="zero",
        title="All data ranks draw the same dropout masks",
        threads=("huggingface/transformers#31412",),
        effect="a major drop of performance",
        plant=faults.dropout_shared,
        finder=Verify(layout="dp2", quantity="gradient", parameter=".", stages=(0,), sections={"model": DROPOUT}),
    ),
]
