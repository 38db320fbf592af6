"""Faults between tensor ranks."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import mappings
from torch import Tensor

from pretrain.attention.alibi import AlibiBias, slopes
from pretrain.attention.core import CoreAttention
from pretrain.engine.boxes import Piece
from pretrain.engine.megatron import built_model, state
from pretrain.models.blocks import BiasDropoutAdd
from pretrain.objectives import tokens
from pretrain.objectives.label_logits import label_logits
from pretrain.random.dropout import Dropout
from tests.helpers import faults
from tests.museum.exhibit import Exhibit
from tests.museum.verifying import Verify


def shards_initialised_alike(patch: pytest.MonkeyPatch) -> None:
    fill = state.fill
    patch.setattr(
        state, "fill", lambda spec, seed, piece: fill(spec, seed, Piece((0,) * piece.value.dim(), piece.value))
    )


def gradient_of_the_own_slice(patch: pytest.MonkeyPatch) -> None:
    """A rank keeps its own slice of the output gradient of a row-parallel linear, and zeros the other slices."""
    scatter = mappings._ReduceScatterToSequenceParallelRegion
    backward = scatter.backward

    def own(ctx: Any, gradient: Tensor) -> Any:
        gathered, *rest = backward(ctx, gradient)
        parts = gathered.chunk(ctx.group.size())
        return torch.cat([part * (rank == ctx.group.rank()) for rank, part in enumerate(parts)]), *rest

    patch.setattr(scatter, "backward", staticmethod(own))


def norms_summed_twice(patch: pytest.MonkeyPatch) -> None:
    once = faults.FINALIZE._allreduce_non_tensor_model_parallel_grads

    def twice(*arguments: Any, **keywords: Any) -> None:
        once(*arguments, **keywords)
        once(*arguments, **keywords)

    patch.setattr(faults.FINALIZE, "_allreduce_non_tensor_model_parallel_grads", twice)


def split_parameters_counted_once(patch: pytest.MonkeyPatch) -> None:
    def unmarked(placed: Any, regroups_experts: bool) -> None:
        for parameter in placed:  # some releases of megatron-core mark them when it makes them
            parameter.value.tensor_model_parallel = False

    patch.setattr(built_model, "mark_split", unmarked)


def loss_of_gathered_logits(patch: pytest.MonkeyPatch) -> None:
    """Each tensor rank has all logits, and their exponentials are summed over ranks nevertheless."""
    entropy = tokens.Tokens._entropy

    def larger(self: tokens.Tokens, *arguments: Any) -> Any:
        return entropy(self, *arguments) + math.log(dist.get_world_size(self._group))

    patch.setattr(tokens.Tokens, "_entropy", larger)


def bias_added_by_every_rank(patch: pytest.MonkeyPatch) -> None:
    add = BiasDropoutAdd.add

    def several(self: BiasDropoutAdd, x_with_bias: Any, *rest: Any) -> Tensor:
        x, bias = x_with_bias
        ranks = parallel_state.get_tensor_model_parallel_world_size()
        return add(self, (x, None if bias is None else ranks * bias), *rest)

    patch.setattr(BiasDropoutAdd, "add", several)


def slopes_of_local_heads(patch: pytest.MonkeyPatch) -> None:
    build = CoreAttention.__init__

    def local(self: CoreAttention, *arguments: Any, **keywords: Any) -> None:
        build(self, *arguments, **keywords)
        self.alibi = AlibiBias(slopes(len(self.heads.heads)))

    patch.setattr(CoreAttention, "__init__", local)


def smoothing_over_the_local_vocabulary(patch: pytest.MonkeyPatch) -> None:
    def above_mean(logits: Tensor, labels: Tensor, vocabulary: int, group: dist.ProcessGroup) -> Tensor:
        real = vocabulary - dist.get_rank(group) * logits.shape[-1]
        return label_logits(logits, labels, group) - logits[..., :real].float().mean(-1)

    patch.setattr(tokens, "_AboveMean", SimpleNamespace(apply=above_mean))


def padding_counted_by_local_ids(patch: pytest.MonkeyPatch) -> None:
    def real(self: tokens.Tokens, logits: Tensor) -> Tensor:
        logits.data[..., self.vocabulary :] = -torch.inf
        return logits

    patch.setattr(tokens.Tokens, "_real", real)


def keys_tiled_over_queries(patch: pytest.MonkeyPatch) -> None:
    forward = CoreAttention.forward

    def tiled(self: CoreAttention, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **keywords: Any) -> Tensor:
        shared = query.shape[2] // key.shape[2]
        return forward(self, query, key.repeat(1, 1, shared, 1), value.repeat(1, 1, shared, 1), *rest, **keywords)

    patch.setattr(CoreAttention, "forward", tiled)


def dropout_alike_on_slices(patch: pytest.MonkeyPatch) -> None:
    place = Dropout.place

    def alike(self: Dropout, name: str, axes: Any) -> None:
        place(self, name, {axis: (0, ranks) for axis, (_, ranks) in axes.items()})

    patch.setattr(Dropout, "place", alike)


DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}

EXHIBITS = [
    Exhibit(
        group="tensor",
        title="Gradients of norms are not summed over tensor ranks under sequence parallelism",
        threads=("EleutherAI/gpt-neox#1257", "NVIDIA/Megatron-LM#1446", "NVIDIA-NeMo/RL#3716"),
        effect="convergence very poor: the loss flattens near 8 after 100 updates",
        plant=faults.norms_not_summed,
        finder=Verify(layout="tp2+sp", quantity="gradient", parameter="layernorm", stages=(0,)),
    ),
    Exhibit(
        group="tensor",
        title="Gradients of parameters that all tensor ranks hold are summed twice",
        threads=("inclusionAI/AReno#496",),
        effect="gradients too large by the number of tensor ranks, in part of another direction",
        plant=norms_summed_twice,
        finder=Verify(layout="tp2+sp", quantity="gradient", parameter="layernorm|bias", stages=(0,)),
    ),
    Exhibit(
        group="tensor",
        title="The clipping norm counts parameters that tensor ranks share on one rank only",
        threads=("NVIDIA/Megatron-LM#7452",),
        effect="clipped too little (there: learnable attention sinks)",
        plant=split_parameters_counted_once,
        finder=Verify(layout="tp2", quantity="gradient norm"),
    ),
    Exhibit(
        group="tensor",
        title="The loss of logits that were gathered is taken as if tensor ranks shared them",
        threads=("NVIDIA/Megatron-LM#7452",),
        effect="the loss is too large by the logarithm of the number of tensor ranks",
        plant=loss_of_gathered_logits,
        finder=Verify(layout="tp2", quantity="loss"),
    ),
    Exhibit(
        group="tensor",
        title="Tensor ranks initialise their shards with the same random numbers",
        threads=("InternLM/InternLM#405", "modelscope/ms-swift#7944"),
        effect="not measured",
        plant=shards_initialised_alike,
        finder=Verify(layout="tp2", quantity="initial weights", step=0, parameter="weight", stages=(0,)),
    ),
    Exhibit(
        group="tensor",
        title="The backward pass of a row-parallel linear uses a rank's own slice of the gradient",
        threads=("huggingface/nanotron#46", "huggingface/nanotron#172"),
        effect="a quarter of the values right on four ranks, in a common setting",
        plant=gradient_of_the_own_slice,
        finder=Verify(layout="tp2+sp", quantity="gradient", parameter=".", stages=(0,)),
    ),
    Exhibit(
        group="tensor",
        title="Every tensor rank adds the bias of a row-parallel linear",
        threads=("awslabs/slapo#10", "PaddlePaddle/Paddle#35186", "huggingface/text-generation-inference#1036"),
        effect="the bias counts as often as there are tensor ranks",
        plant=bias_added_by_every_rank,
        finder=Verify(layout="tp2", quantity="gradient", parameter="bias", stages=(0,)),
    ),
    Exhibit(
        group="tensor",
        title="ALiBi slopes are those of a rank's local heads",
        threads=("bigscience-workshop/Megatron-DeepSpeed#227",),
        effect="found by reading, before BLOOM was trained",
        plant=slopes_of_local_heads,
        finder=Verify(family="bloom", layout="tp2", quantity="gradient", parameter=".", stages=(0,)),
    ),
    Exhibit(
        group="tensor",
        title="Label smoothing averages over the local part of the vocabulary",
        threads=("NVIDIA/Megatron-LM#737", "NVIDIA/Megatron-LM#7464"),
        effect="loss and gradient of every step wrong; open since March 2024",
        plant=smoothing_over_the_local_vocabulary,
        finder=Verify(
            layout="tp2", quantity="gradient", parameter=".", sections={"objective": {"label_smoothing": 0.1}}
        ),
    ),
    Exhibit(
        group="tensor",
        title="Padding of the vocabulary is recognised by local ids, so that it takes part in the softmax",
        threads=("NVIDIA/Megatron-LM#1754", "NVIDIA-BioNeMo/bionemo-recipes#631"),
        effect="loss over 50% off one rank's after 2,000 steps",
        plant=padding_counted_by_local_ids,
        finder=Verify(layout="tp2", quantity="gradient", parameter=".", stages=(0,)),
    ),
    Exhibit(
        group="tensor",
        title="Grouped-query attention repeats keys in the wrong order",
        threads=("onnx/onnx#7274",),
        effect="not measured",
        plant=keys_tiled_over_queries,
        finder=Verify(family="llama", layout="tp2", quantity="gradient", parameter=".", stages=(0,)),
    ),
    Exhibit(
        group="tensor",
        title="Slices of a sequence have the same dropout mask",
        threads=("PaddlePaddle/PaddleFleetX#1005",),
        effect="not measured",
        plant=dropout_alike_on_slices,
        finder=Verify(layout="tp2+sp", quantity="gradient", parameter=".", stages=(0,), sections={"model": DROPOUT}),
    ),
    Exhibit(
        group="tensor",
        title="One tensor rank's norms decay",
        threads=("Lightning-AI/lit-llama#254",),
        effect="not measured (there on all ranks)",
        plant=faults.decay_on_norms,
        finder=Verify(layout="tp2", quantity="update", parameter="layernorm.weight", stages=(0,)),
    ),
]
