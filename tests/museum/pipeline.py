"""Faults between pipeline stages and between micro-batches."""

from typing import Any

import pytest
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor

from pretrain.engine.zero import megatron
from pretrain.engine.zero.megatron import MegatronSharding
from tests.helpers import faults, hidden_faults
from tests.museum.exhibit import Exhibit
from tests.museum.tensor import DROPOUT
from tests.museum.verifying import Verify


def gradients_cleared_between_micro_batches(patch: pytest.MonkeyPatch) -> None:
    def clears(self: MegatronSharding, chunk: Any, output: Any) -> None:
        chunk.zero_grad_buffer()

    patch.setattr(MegatronSharding, "forwarded", clears)


def clipped_by_the_norm_of_a_stage(patch: pytest.MonkeyPatch) -> None:
    sum_of_squares = megatron.sum_of_squares

    def of_a_stage(gradients: Any, group: Any, *rest: Any) -> Tensor:
        return sum_of_squares(gradients, parallel_state.get_tensor_and_data_parallel_group(), *rest)

    patch.setattr(megatron, "sum_of_squares", of_a_stage)


def last_stage_not_synchronised(patch: pytest.MonkeyPatch) -> None:
    """Data ranks keep their own gradients there."""
    finish = DistributedDataParallel.finish_grad_sync

    def first_stage_alone(self: DistributedDataParallel, *arguments: Any, **keywords: Any) -> None:
        if parallel_state.get_pipeline_model_parallel_rank() == 0:
            finish(self, *arguments, **keywords)

    patch.setattr(DistributedDataParallel, "finish_grad_sync", first_stage_alone)


EXHIBITS = [
    Exhibit(
        group="pipeline",
        title="The gradient of a tied embedding is not exchanged between the first and the last stage",
        threads=("uw-syfi/piper#13",),
        effect="not measured",
        plant=faults.tied_embedding_not_exchanged,
        finder=Verify(layout="pp2", quantity="gradient", parameter="^embedding.word_embeddings.weight$", stages=(0, 1)),
    ),
    Exhibit(
        group="pipeline",
        title="Model chunks of an interleaved pipeline start with equal weights",
        threads=("pytorch/torchtitan#514", "Modalities/modalities#426"),
        effect="not measured",
        plant=faults.virtual_chunks_alike,
        finder=Verify(layout="pp2+vp2", quantity="initial weights", step=0, parameter="layers.[4-7].*weight"),
    ),
    Exhibit(
        group="pipeline",
        title="Accumulated gradients are cleared before each micro-batch",
        threads=("NVIDIA-NeMo/Automodel#3530", "pytorch/torchtitan#3575"),
        effect="only the last micro-batch trains; the loss looks fine",
        plant=gradients_cleared_between_micro_batches,
        finder=Verify(layout="pp2", quantity="gradient", parameter="."),
    ),
    Exhibit(
        group="pipeline",
        title="Each stage clips by the norm of its own gradient",
        threads=("pytorch/torchtitan#596", "pytorch/torchtitan#649"),
        effect="not measured; release blocker",
        plant=clipped_by_the_norm_of_a_stage,
        finder=Verify(layout="pp2", quantity="gradient norm", sections={"optimizer": {"clip_norm": 0.1}}),
    ),
    Exhibit(
        group="pipeline",
        title="Data ranks of the last stage never synchronise their gradients",
        threads=("huggingface/picotron#5",),
        effect="a rank that never synchronises",
        plant=last_stage_not_synchronised,
        finder=Verify(layout="pp2dp2+zero0", quantity="gradient", parameter=".", stages=(1,)),
    ),
    Exhibit(
        group="pipeline",
        title="The loss is averaged per micro-batch, then over micro-batches, where labels are masked",
        threads=(
            "huggingface/transformers#34191",
            "huggingface/transformers#34263",
            "huggingface/transformers#35438",
        ),
        effect="the loss depends on the accumulation steps; after a first fix, it was 2 to 10 times too large",
        plant=faults.loss_divided_per_micro_batch,
        finder=Verify(layout="dp2", quantity="gradient norm"),
    ),
    Exhibit(
        group="pipeline",
        title="Recomputed layers drop other elements than the forward pass did",
        threads=("allenai/OLMo-core#828", "openai/guided-diffusion#167"),
        effect="cross entropy 2.495 instead of 2.195 after 150 steps of a 4B model",
        plant=hidden_faults.recomputed_with_other_dropout,
        finder=Verify(
            layout="pp2",
            quantity="gradient",
            parameter=".",
            sections={"model": DROPOUT, "parallel": {"recompute": "full"}},
        ),
    ),
]
