"""Settings that go with recurrent cells."""

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any

from pretrain.classics.rnn.key import KEY, DotScore, Recurrent
from pretrain.config.init import NormalInit
from pretrain.config.model_values import ModelValues
from pretrain.config.parallel import Parallel
from pretrain.config.part import ModelPart, RunSettings, SmallSizes

Refusal = tuple[str, bool, str, str]
"""(key, whether it is set, why not, what to set it to)"""
_SMALL_LENGTH = 24


class RecurrentPart(ModelPart[Recurrent]):
    """See `Recurrent`. A family that may have it is made of it."""

    key = KEY
    keeps_positions = False

    def check(self, model: ModelValues) -> None:
        """See `ModelPart`."""
        super().check(model)
        settings = self.of(model)
        if settings is not None:
            _check_sizes(settings, model)
        elif self.key.name in model.capabilities.parts:
            raise ValueError(f"model.family={model.family} is made of recurrent cells: set model.recurrent.cell")

    def check_run(self, config: RunSettings) -> None:
        """See `ModelPart`."""
        super().check_run(config)
        model, finetune = config.model, config.finetune
        if self.of(model) is None:
            return
        reason = self.refuses(model, config.parallel) or _first(
            model,
            (
                (
                    "parallel.recompute=selective",
                    config.parallel.recompute == "selective",
                    "selective recomputation is of self-attention, which cells do not have",
                    "none or full",
                ),
                ("precision=fp8", config.precision == "fp8", "cells multiply in half precision or fp32", "bf16"),
                ("finetune.lora", finetune.lora is not None, "LoRA is for linear layers of Transformers", "null"),
                ("finetune.adapters", finetune.adapters is not None, "adapters are for layers of Transformers", "null"),
                (
                    f"objective.name={config.objective.name}",
                    config.objective.task_head is not None,
                    "its head reads states of Transformers",
                    "an objective that predicts tokens",
                ),
                (
                    "distillation of layers",
                    config.compares_layers,
                    "what it compares are layers of Transformers",
                    "weights of 0",
                ),
            ),
        )
        if reason is not None:
            raise ValueError(reason)

    def refuses(self, model: ModelValues, parallel: Parallel) -> str | None:
        """See `ModelPart`."""
        if self.of(model) is None:
            return None
        return _first(
            model,
            (
                (
                    "parallel.tensor",
                    parallel.tensor > 1,
                    "each step of a cell needs the whole state of the step before, which tensor ranks would exchange "
                    "at every position",
                    "1",
                ),
                (
                    "parallel.context",
                    parallel.context > 1,
                    "a cell reads its positions in order, so that context ranks would wait for each other",
                    "1",
                ),
                (
                    "parallel.pipeline",
                    parallel.pipeline > 1,
                    "with attention, the first layer of a step reads what the last one said of the step before, so "
                    "that stages would exchange states at every position",
                    "1",
                ),
            ),
        )

    def shrunk(self, model: ModelValues, sizes: SmallSizes) -> Mapping[str, Any]:
        """See `ModelPart`. The model takes a step of its own for each position. A state keeps what a step multiplies it
        by, which grows with std * sqrt(width): position after position, it multiplies rounding, too."""
        cells = self.of(model)
        if cells is None:
            return {}
        small: dict[str, Any] = {"heads": 1, "head_dim": None, "ffn": None, "sequence_length": _SMALL_LENGTH}
        if model.is_encoder_decoder:
            small["target_length"] = _SMALL_LENGTH // 2
        of_cells: dict[str, Any] = {}
        if cells.encoder_size is not None:
            of_cells["encoder_size"] = sizes.hidden // len(cells.directions)
        if cells.score is not None:
            of_cells["score"] = {"size": None}
        if isinstance(model.init, NormalInit):
            small["init"] = {"std": model.init.std * sqrt(model.hidden / sizes.hidden)}
        return {"model": small | {self.key.name: of_cells}}


def _first(model: ModelValues, refusals: Iterable[Refusal]) -> str | None:
    for key, is_set, reason, instead in refusals:
        if is_set:
            return f"model.family={model.family} is not trained with {key}: {reason}. Set it to {instead}"
    return None


def _check_sizes(cells: Recurrent, model: ModelValues) -> None:
    """Raises ValueError for settings that do nothing, or sizes that do not meet."""
    if not model.has_encoder:
        for key in ("encoder", "encoder_size", "score", "initial_state"):
            if getattr(cells, key) is not None:
                raise ValueError(
                    f"model.recurrent.{key} is for encoder-decoders, and model.encoder_layers=0: leave it out"
                )
        return
    if cells.encoder_size is None and model.hidden % len(cells.directions):
        raise ValueError(
            f"model.hidden={model.hidden} is odd, and each direction of the encoder has half of it: set "
            "model.recurrent.encoder_size"
        )
    width = cells.annotation(model.hidden)
    if isinstance(cells.score, DotScore) and width != model.hidden:
        raise ValueError(
            f"model.recurrent.score=dot multiplies states of {width} and {model.hidden} units: make "
            "model.recurrent.encoder_size fit, or use general"
        )
    encoder_layers, layers = model.stacks
    if not cells.starts_dense and (width != model.hidden or encoder_layers != layers):
        raise ValueError(
            f"model.recurrent.initial_state=copy hands {encoder_layers} states of {width} units to {layers} layers of "
            f"{model.hidden}: make them equal, or use dense"
        )


RECURRENT = RecurrentPart()
