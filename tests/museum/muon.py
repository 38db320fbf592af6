"""Faults of distributed Muon: other updates on some layouts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from megatron.core import parallel_state

from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.optimizer import muon
from pretrain.engine.optimizer.block_exchange import Block
from pretrain.model_spec.blocks import RowBlocks
from pretrain.models.placement import Parameter
from tests.museum.exhibit import Exhibit
from tests.museum.verifying import Verify

Work = Callable[[int, int], float]
SETTINGS = {"name": "muon", "learning_rate": 2e-3, "weight_decay": 0.01}
_find_blocks = muon.find_blocks


def _with_blocks(patch: pytest.MonkeyPatch, change: Callable[[Parameter], RowBlocks | None]) -> None:
    """Declares other blocks of each parameter."""

    def changed(parameters: Sequence[Parameter], per_head: bool, work: Work) -> list[Block]:
        wrong = [replace(one, spec=replace(one.spec, blocks=change(one))) for one in parameters]
        return _find_blocks(wrong, per_head, work)

    patch.setattr(muon, "find_blocks", changed)


def queries_split_by_the_rows_of_the_shard(patch: pytest.MonkeyPatch) -> None:
    """A shard's rows are not those of queries, keys and values, so that they are taken for one matrix."""

    def change(one: Parameter) -> RowBlocks | None:
        return RowBlocks() if one.spec.blocks and one.local_shape[0] != one.spec.shape[0] else one.spec.blocks

    _with_blocks(patch, change)


def queries_not_split_beyond_kv_heads(patch: pytest.MonkeyPatch) -> None:
    def change(one: Parameter) -> RowBlocks | None:
        blocks, ranks = one.spec.blocks, parallel_state.get_tensor_model_parallel_world_size()
        fused = blocks is not None and "key" in blocks.names
        return RowBlocks() if fused and one.spec.shape[0] // (blocks.rows * len(blocks.names)) < ranks else blocks

    _with_blocks(patch, change)


def heads_of_the_whole_matrix_in_a_shard(patch: pytest.MonkeyPatch) -> None:
    """Each shard is split into as many heads as the matrix has: each head into as many parts as there are ranks."""

    def change(one: Parameter) -> RowBlocks | None:
        blocks, ranks = one.spec.blocks, parallel_state.get_tensor_model_parallel_world_size()
        if blocks is None or not blocks.are_heads:
            return blocks
        names = tuple(name for name in blocks.names for _ in range(ranks))
        return replace(blocks, names=names, rows=blocks.rows // ranks)

    _with_blocks(patch, change)


def shards_orthogonalized(patch: pytest.MonkeyPatch) -> None:
    def cut(parameters: Sequence[Parameter], per_head: bool, work: Work) -> list[Block]:
        return [
            replace(block, name=f"{block.name} {first}", rows=rows)
            for block in _find_blocks(parameters, per_head, work)
            for height in [block.parameter.local_shape[0]]
            for first in range(0, block.parameter.spec.shape[0], height)
            for rows in [block.rows[(block.rows >= first) & (block.rows < first + height)]]
        ]

    patch.setattr(muon, "find_blocks", cut)


def momentum_lost(patch: pytest.MonkeyPatch) -> None:
    loaded = MegatronEngine.state_loaded

    def without(self: MegatronEngine, updates: int, *rest: Any) -> None:
        for name, part in self.state().items():
            for piece in part.pieces if name.startswith("momentum/") else ():
                piece.value.zero_()
        loaded(self, updates, *rest)

    patch.setattr(MegatronEngine, "state_loaded", without)


EXHIBITS = [
    Exhibit(
        group="muon",
        title="Muon splits queries, keys and values by the rows of a rank's shard",
        threads=("NVIDIA/Megatron-LM#7117",),
        effect="updates 26% off, 95% for keys and values; loss 0.173% higher on 256 GPUs",
        plant=queries_split_by_the_rows_of_the_shard,
        finder=Verify(
            layout="tp2", quantity="update", parameter="linear_qkv.weight", stages=(0,),
            sections={"optimizer": SETTINGS},
        ),
    ),
    Exhibit(
        group="muon",
        title="Muon does not split queries, keys and values where tensor ranks exceed KV heads",
        threads=("NVIDIA/Megatron-LM#6326", "NVIDIA/Megatron-LM#4731"),
        effect="another update on such layouts",
        plant=queries_not_split_beyond_kv_heads,
        finder=Verify(
            layout="tp2", quantity="update", parameter="linear_qkv.weight", stages=(0,),
            sections={"optimizer": SETTINGS, "model": {"kv_heads": 1}},
        ),
    ),
    Exhibit(
        group="muon",
        title="Muon per head counts the heads of the unsharded matrix",
        threads=("deepspeedai/DeepSpeed#8384",),
        effect="updates 29% off",
        plant=heads_of_the_whole_matrix_in_a_shard,
        finder=Verify(
            layout="tp2", quantity="update", parameter="linear_qkv.weight", stages=(0,),
            sections={"optimizer": {**SETTINGS, "per_head": True}},
        ),
    ),
    Exhibit(
        group="muon",
        title="Muon orthogonalizes the shards of tensor ranks by themselves",
        threads=("deepspeedai/DeepSpeed#8437",),
        effect="updates 39% off",
        plant=shards_orthogonalized,
        finder=Verify(
            layout="tp2", quantity="update", parameter="linear_(qkv|fc1).weight", stages=(0,),
            sections={"optimizer": SETTINGS},
        ),
    ),
    Exhibit(
        group="muon",
        title="The momentum of Muon is lost on resuming",
        threads=("NVIDIA-NeMo/Megatron-Bridge#4565",),
        effect="the loss is abnormal after resuming",
        plant=momentum_lost,
        finder=Verify(
            layout="dp2+zero2", step=2, quantity="checkpoint", parameter="weight", stages=(0,),
            sections={"optimizer": SETTINGS},
        ),
    ),
]  # fmt: skip
