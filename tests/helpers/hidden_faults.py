"""Faults of a layout that a smaller model would hide, or that steps of training alone don't show. Planted as those of
`faults.py`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from megatron.core import parallel_state
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.tensor_parallel import random as megatron_random
from torch import nn

from pretrain.attention.core import CoreAttention
from pretrain.checkpoint import snapshot
from pretrain.checkpoint.state import Record
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.engine.megatron.runner import Runner
from pretrain.engine.zero.deepspeed import DeepSpeedSharding
from pretrain.engine.zero.megatron import MegatronSharding
from pretrain.models.heads import PlainHead
from pretrain.models.layers import Layers
from pretrain.models.stream import Stream
from pretrain.objectives.tokens import Tokens


def layers_reversed(patch: pytest.MonkeyPatch) -> None:
    """Each chunk runs its layers from the last to the first."""
    forward = Layers.forward

    def reversed_forward(self: Layers, *arguments: Any) -> Any:
        layers = self.layers
        self.layers = nn.ModuleList(reversed(layers))
        try:
            return forward(self, *arguments)
        finally:
            self.layers = layers

    patch.setattr(Layers, "forward", reversed_forward)


def border_at_half(patch: pytest.MonkeyPatch) -> None:
    """An encoder-decoder takes the first half of its stream for the encoder's."""
    span = Stream._span

    def half(self: Stream, name: Any) -> slice:
        if name == "tables" or not {"encoder", "decoder"} <= self.lengths.keys():
            return span(self, name)
        end = self.lengths["encoder"] + self.lengths["decoder"]
        return slice(0, end // 2) if name == "encoder" else slice(end // 2, end)

    patch.setattr(Stream, "_span", half)


def late_micro_batches_lost(patch: pytest.MonkeyPatch) -> None:
    """A pipeline runs no more micro-batches than twice its stages."""
    run = Runner._run

    def short(self: Runner, batches: Any, *rest: Any) -> Any:
        return run(self, batches[: 2 * self._layout.pipeline], *rest)

    patch.setattr(Runner, "_run", short)


def long_slices_swapped(patch: pytest.MonkeyPatch) -> None:
    """Context ranks take each other's slices of sequences of more than 64 positions."""
    local_positions = Cutter._local_positions

    def swapped(self: Cutter, length: int) -> slice:
        own = local_positions(self, length)
        return slice(length - own.stop, length - own.start) if length > 64 else own

    patch.setattr(Cutter, "_local_positions", swapped)


def scaled_by_hidden_over_heads(patch: pytest.MonkeyPatch) -> None:
    """Attention scores are divided as if heads shared the width of the residual stream."""
    forward = CoreAttention.forward

    def wrong(self: CoreAttention, query: Any, *rest: Any, **keywords: Any) -> Any:
        shared = self.config.hidden_size / self.config.num_attention_heads
        return forward(self, query * (query.shape[-1] / shared) ** 0.5, *rest, **keywords)

    patch.setattr(CoreAttention, "forward", wrong)


def small_decay_lost(patch: pytest.MonkeyPatch) -> None:
    """A weight decay of 0.01 is none."""
    build = MegatronSharding.__init__

    def without(self: MegatronSharding, *, config: Any, **rest: Any) -> None:
        assert config.optimizer.weight_decay == 0.01
        optimizer = config.optimizer.model_copy(update={"weight_decay": 0.0})
        build(self, config=config.model_copy(update={"optimizer": optimizer}), **rest)

    patch.setattr(MegatronSharding, "__init__", without)


def power_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """After a stop, Adam corrects its moments as if one update less had been made."""
    for sharding in (MegatronSharding, DeepSpeedSharding):
        loaded = sharding.loaded

        def less(self: Any, updates: int, loaded: Any = loaded) -> None:
            loaded(self, max(0, updates - 1))

        patch.setattr(sharding, "loaded", less)


def schedule_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """After a stop, each step has the learning rate of the one before."""
    loaded, step = MegatronEngine.state_loaded, MegatronEngine.train_step

    def noted(self: MegatronEngine, updates: int, *rest: Any) -> None:
        loaded(self, updates, *rest)
        self.late_by = int(updates > 0)  # type: ignore[attr-defined]

    def late(self: MegatronEngine, batch: Any, learning_rate: float, number: int) -> Any:
        factor = (number / (number - 1)) ** 0.5 if self.late_by else 1.0  # type: ignore[attr-defined]
        return step(self, batch, learning_rate * factor, number)

    patch.setattr(MegatronEngine, "state_loaded", noted)
    patch.setattr(MegatronEngine, "train_step", late)


def a_step_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint's record is read as that of one step less."""
    read = Record.read

    def less(path: Path) -> Record:
        record = read(path)
        return replace(record, step=record.step - 1)

    patch.setattr(Record, "read", less)


def checkpoints_rounded(patch: pytest.MonkeyPatch) -> None:
    copy = snapshot.copy

    def rounded(pieces: Any, buffer: Any) -> None:
        copy(pieces, buffer)
        values = buffer.view(torch.float32)
        values.copy_(values.to(torch.bfloat16))

    patch.setattr(snapshot, "copy", rounded)


def scores_swapped(patch: pytest.MonkeyPatch) -> None:
    """Context ranks' scores are joined in the wrong order."""
    gather = Groups.gather_over_context

    def swapped(self: Groups, value: Any) -> Any:
        return torch.cat(gather(self, value).chunk(self.context_world, dim=-1)[::-1], dim=-1)

    patch.setattr(Groups, "gather_over_context", swapped)


def dropout_left_on(patch: pytest.MonkeyPatch) -> None:
    """Scores are made with dropout."""
    patch.setattr(Runner, "evaluating", lambda self: torch.no_grad())


def dropout_left_off(patch: pytest.MonkeyPatch) -> None:
    """Once something was scored, training has no dropout any more."""

    def off(self: Runner) -> Any:
        for chunk in self._chunks:
            chunk.eval()
        return torch.no_grad()

    patch.setattr(Runner, "evaluating", off)


def recomputed_with_other_dropout(patch: pytest.MonkeyPatch) -> None:
    """What is recomputed drops what the micro-batch that was forwarded last does."""
    patch.setattr(megatron_random, "_set_all_rng_states", lambda *_: None)


def dropout_of_the_first_batch_s_rows(patch: pytest.MonkeyPatch) -> None:
    """Dropout counts rows as if every batch were as large as the first that the engine saw."""
    cut = Cutter.cut

    def counted(self: Cutter, batch: Any, micro: int, first_row: int = 0, *rest: Any) -> Any:
        rows = len(batch.tokens)
        if first_row:  # in training
            self.first_rows = rows = getattr(self, "first_rows", rows)  # type: ignore[attr-defined]
        before = parallel_state.get_data_parallel_rank() * (rows - len(batch.tokens))
        return cut(self, batch, micro, first_row + before, *rest)

    patch.setattr(Cutter, "cut", counted)


def rate_of_a_group_kept(patch: pytest.MonkeyPatch) -> None:
    """With either engine's sharded optimizer, one parameter group keeps its first learning rate."""
    for optimizer, method in ((DistributedOptimizer, "step_with_ready_grads"), (DeepSpeedZeroOptimizer, "step")):
        step = getattr(optimizer, method)

        def kept(self: Any, *arguments: Any, step: Any = step) -> Any:
            group = self.param_groups[-1]
            group["lr"] = group.setdefault("first_rate", group["lr"])
            return step(self, *arguments)

        patch.setattr(optimizer, method, kept)


def caps_in_training_alone(patch: pytest.MonkeyPatch) -> None:
    """Scoring has no cap of scores or logits, on any layout."""
    for module, name in ((CoreAttention, "softcap"), (PlainHead, "cap")):
        forward = module.forward

        def uncapped(self: Any, *arguments: Any, forward: Any = forward, name: str = name, **keywords: Any) -> Any:
            cap = getattr(self, name)
            setattr(self, name, cap if self.training else None)
            try:
                return forward(self, *arguments, **keywords)
            finally:
                setattr(self, name, cap)

        patch.setattr(module, "forward", uncapped)


def scores_of_another_temperature(patch: pytest.MonkeyPatch) -> None:
    score = Tokens.score

    def warm(self: Tokens, *arguments: Any) -> Any:
        judged = score(self, *arguments)
        return replace(judged, log_probability=0.99 * judged.log_probability)

    patch.setattr(Tokens, "score", warm)
