"""The same input through both implementations: what passes over from or to Hugging Face passes this first.

A trained model may turn the rounding of fp32 into more than any fixed limit: two attention kernels of transformers give
Gemma 3 270M logits that are 1.2e-3 apart. Where logits differ by more than `GATE`, the limit is therefore measured: how
far transformers' own logits move when its weights do by a unit in the last place, twice, as both implementations round.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PretrainedConfig

from data_pipeline.batch import RIGHT_CHOICE, SPAN_START, WRONG_CHOICE, Rows
from data_pipeline.recipes.masked import Masked
from pretrain.config.attention import Banded
from pretrain.config.model import Model
from pretrain.config.positions import AlibiPositions, RotaryPositions
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.base import HiddenStateEngine, InspectEngine
from pretrain.errors import ConfigError, RunError
from pretrain.interop.hf.hf_answers import hf_answers, less_mean, shown_texts, text_length
from pretrain.interop.hf.registry import hf_family_of

GATE = 1e-4
"""largest logit difference, fp32, that needs no reason"""
_ROWS = 2
_DRAWS = 4
_IMPLEMENTATIONS = 2  # SmolLM2 135M's logits (up to 34) are 9.0e-5 from those of fp64 here and 1.0e-4 in transformers
_UNIT = 2.0**-23  # of fp32, relative
_BEYOND = 64


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Results of the gate for a model that passed."""

    difference: float
    """the largest of what was compared, fp32"""
    limit: float
    compared: str = "logit"
    rounded: tuple[str, float] | None = None
    """the type that weights are stored in after the gate, and the difference that it makes; None: fp32"""
    by_layer: bool = False
    """one layer was in memory at a time"""
    reference: str = "transformers"
    """whose answers they were compared with"""

    def __str__(self) -> str:
        measured = f"largest {self.compared} difference from {self.reference} {self.difference:.2e}"
        if self.limit > GATE:
            measured += f"; limit, twice what a unit in the last place of its weights makes: {self.limit:.2e}"
        if self.rounded is not None:
            dtype, moved = self.rounded
            measured += f" (fp32 weights); of the weights stored in {dtype}: {moved:.2e}"
        if self.by_layer:
            measured += " (all layers computed, with one in memory at a time)"
        return measured


def pass_gate(
    verb: str,
    logits: tuple[Tensor, ...],
    hf_model: Any,
    batch: Rows,
    model: Model,
    *,
    compared: str = "logit",
    reference: str = "transformers",
) -> Agreement:
    """Compares our logits (`our_answers` of `model`), or what else is `compared`, with those of a Hugging Face model,
    which is of no more use after that, and which `reference` made. Raises RunError, "not VERB: ...", if they differ."""
    try:
        expected = hf_answers(hf_model, batch, model)
    except ConfigError:  # of a folder that is read layer by layer
        raise
    except Exception as error:  # the library raises whatever a config leads to
        raise RunError(
            f"not {verb}: transformers' {type(hf_model).__name__} does not run with this config.json "
            f"({' '.join(str(error).split())[:200]})"
        ) from None
    difference, limit = largest_difference(logits, expected), GATE
    if difference > limit:
        limit = max(limit, _IMPLEMENTATIONS * _rounding(hf_model, batch, model, expected))
    if not difference <= limit:
        name = type(hf_model).__name__
        theirs = {"transformers": f"transformers' {name}", "PEFT": f"PEFT's {name}"}.get(reference, reference)
        raise RunError(f"not {verb}: {compared}s differ by {difference:.2e} from {theirs}, more than {limit:.2e}")
    return Agreement(
        difference=difference,
        limit=limit,
        compared=compared,
        by_layer=hasattr(hf_model, "by_layer"),
        reference=reference,
    )


def check_stored(
    passed: Agreement, logits: tuple[Tensor, ...], hf_model: Any, batch: Rows, model: Model, *, dtype: str
) -> Agreement:
    """Agreement `passed`, updated for the model read from weights that were stored in `dtype` after the gate. Raises
    RunError if fp32 weights changed, or rounded ones no longer give finite logits."""
    moved = largest_difference(logits, hf_answers(hf_model, batch, model))
    if dtype == "fp32":
        if not moved <= passed.limit:
            raise RunError(f"not exported: the files hold other weights than passed the gate ({moved:.2e})")
        return passed
    if not math.isfinite(moved):
        raise RunError(f"not exported: with weights in {dtype}, logits are not finite")
    return replace(passed, rounded=(dtype, moved))


def _rounding(hf_model: Any, batch: Rows, model: Model, expected: tuple[Tensor, ...]) -> float:
    """Largest change of logits when all weights move by a unit in the last place, up or down as drawn. It is the most
    of a few draws, as a position that is near to a turning point moves much in some of them and little in others.
    Weights stay moved: a copy would take the memory of another model."""
    draw, moved = torch.Generator().manual_seed(0), []
    for _ in range(_DRAWS):
        move_by_a_unit(hf_model, draw)
        if hasattr(hf_model, "by_layer"):  # whose layers are moved when they are read
            hf_model.by_layer.draws += 1
        before, expected = expected, hf_answers(hf_model, batch, model)
        moved.append(largest_difference(before, expected))
    return max(moved)


def move_by_a_unit(weights: torch.nn.Module, draw: torch.Generator) -> None:
    """Moves each weight by a unit in the last place, up or down as drawn."""
    with torch.no_grad():
        for weight in weights.parameters():
            up = torch.rand(weight.shape, generator=draw) < 0.5
            weight.mul_(torch.where(up, 1 + _UNIT, 1 - _UNIT))


def rows_for(config: RunConfig, hf_config: PretrainedConfig | None = None, end: int = -1) -> Rows:
    """Synthetic rows of the model's full length, with padding, segments and targets where the model reads them. Of a
    model with a task head, see `head_rows_for`, which needs `hf_config` and takes `end`.

    Each row is one document with consecutive positions, as Hugging Face's models expect. Without a table of positions,
    rows are only as long as every window's border needs. A class with its own rules for padding gets none. Where a text
    and its translation share a row, positions restart at the translation."""
    model = config.model
    if isinstance(model.positions, RotaryPositions | AlibiPositions):
        reaches = [pattern.reach for pattern in model.attention.kinds if isinstance(pattern, Banded)]
        length = min(model.sequence_length, _BEYOND + max(reaches, default=_BEYOND))
        config = config.model_copy(update={"model": model.model_copy(update={"sequence_length": length})})
    if model.task_head is not None:
        assert hf_config is not None
        return head_rows_for(config, hf_config, end)
    rows = replace(SyntheticStream(config).batch(0, _ROWS, 0, 1), documents=None)
    if not hf_family_of(model).padded and rows.attention_mask is not None:
        rows = replace(rows, attention_mask=np.ones_like(rows.attention_mask))
    return rows


def encoder_rows(config: RunConfig) -> Rows:
    """Synthetic rows for the encoder of a run, whatever its head."""
    masked = Masked(noise_density=0.15)
    rows = rows_for(
        config.model_copy(update={"model": config.model.headless(), "objective": masked, "generator": None})
    )
    if rows.label_positions is None:
        return rows
    whole = np.ones(rows.tokens.shape, np.float32)
    return replace(rows, labels=rows.tokens, loss_mask=whole, label_positions=None)


def last_states(engine: HiddenStateEngine, model: Model, batch: Rows) -> tuple[Tensor, ...]:
    """The last hidden states of an encoder, without what a mask decoder makes of them."""
    states = engine.hidden_states(batch, "encoder", [model.layers], pooled=False)
    return (torch.from_numpy(states[:, :, 0]),)


def head_rows_for(config: RunConfig, hf_config: PretrainedConfig, end: int = -1) -> Rows:
    """Synthetic rows for a model with a task head, the first of the model's full length and others shorter, with the
    padding of `hf_config`. A decoder's rows end with `end`, as its run's do, even if that is the padding, which
    transformers would pass over; other rows, and those without an `end`, with the end of text of `hf_config`.
    `loss_mask` is 1 where the model answers. Of choices, the texts of a row have different lengths."""
    model, length = config.model, config.sequence_length
    texts = config.objective.texts_per_row if config.objective.loss == "choice" else 1
    if texts == 1 and config.objective.texts_per_row > 1:  # a classifier of sums is one of each text
        config = config.model_copy(update={"objective": config.objective.model_copy(update={"both_orders": False})})
        length = config.sequence_length
    rows = SyntheticStream(config).batch(0, _ROWS, 0, 1)
    ends = hf_config.eos_token_id if isinstance(hf_config.eos_token_id, list) else [hf_config.eos_token_id]
    known = range(getattr(hf_config, "vocab_size", model.vocab_size))  # defaults of a config may lie beyond
    has_end_of_run = config.model.is_causal and end >= 0
    if not has_end_of_run:
        end = next((index for index in ends if index in known), -1)
    pad: int = next((index for index in (hf_config.pad_token_id, end) if index in known), 0)
    count, length = _ROWS * texts, length // texts
    every = np.arange(count)
    sizes = np.array([length - (length * text) // (2 * count) for text in every])
    if not hf_family_of(model).padded:
        sizes[:] = length
    seen = np.arange(length) < sizes[:, None]
    ordinary = next(index for index in range(model.vocab_size) if index not in (pad, end))
    tokens = rows.tokens.reshape(count, length)
    tokens = np.where(np.isin(tokens, (pad, end)), ordinary, tokens)
    if has_end_of_run or end not in (-1, pad):
        tokens[every, sizes - 1] = end
    tokens = np.where(seen, tokens, pad)
    mask = seen.astype(np.float32)
    if model.task_head is not None and model.task_head.kind in ("sequence", "choice"):
        mask = np.zeros_like(mask)
        mask[every, sizes - 1 if model.answers_at_end else 0] = 1
    labels = rows.labels
    if model.task_head is not None and model.task_head.kind == "span":  # whose ends read the state of a start
        labels = np.where(np.arange(length) == sizes[:, None] // 2, SPAN_START, 0)
    if texts > 1:
        return _choices_side_by_side(rows, tokens, seen, mask)
    decoder_tokens = None
    if model.is_encoder_decoder:
        start = np.full((_ROWS, 1), hf_config.decoder_start_token_id)
        decoder_tokens = np.concatenate([start, tokens[:, :-1]], axis=1)
    return replace(
        rows,
        tokens=tokens,
        labels=labels,
        loss_mask=mask,
        decoder_tokens=decoder_tokens,
        attention_mask=seen if model.has_encoder else None,
    )


def _choices_side_by_side(rows: Rows, tokens: np.ndarray, seen: np.ndarray, answers: np.ndarray) -> Rows:
    """`rows` with these texts [rows * choices, S], each of which answers where `answers` is 1; the first choice of a
    row is right."""
    count, length = len(tokens) // _ROWS, tokens.shape[1]
    number = np.arange(len(tokens))[:, None] % count
    labels = np.where(answers > 0, np.where(number == 0, RIGHT_CHOICE, WRONG_CHOICE), 0)
    columns = {
        "tokens": tokens,
        "labels": labels,
        "loss_mask": (labels == RIGHT_CHOICE).astype(np.float32),
        "documents": np.where(seen, number, -1),
        "positions": np.broadcast_to(np.arange(length), tokens.shape),
    }
    if rows.next_tokens is not None:
        following = np.pad(tokens[:, 1:], ((0, 0), (0, 1)))
        columns["next_tokens"] = np.where(np.pad(seen[:, 1:], ((0, 0), (0, 1))), following, -1)
    return replace(rows, **{name: values.reshape(_ROWS, -1) for name, values in columns.items()})


def our_answers(engine: InspectEngine, model: Model, batch: Rows) -> tuple[Tensor, ...]:
    """Logits of a model that predicts tokens, of rows with queries at these alone. Of a model with a task head, its
    answers where the loss mask of `batch` is 1, [answers, outputs]; of choices the answer of each, less their mean, and
    the vocabulary's logits if the model has them."""
    if model.task_head is None:
        logits = engine.logits(batch)
        return logits if batch.order is None else tuple(x[:, text_length(batch.order) :] for x in logits)
    known = np.minimum(batch.tokens, model.vocab_size - 1)  # padding may be another id, and comes after the text
    answers, *more = engine.logits(replace(batch, tokens=known))
    if model.task_head.kind == "span":
        answers = answers[..., :3]  # the end given other starts is computed alike
    if model.task_head.kind != "choice":
        return (answers[torch.from_numpy(batch.loss_mask > 0)],)
    seen = torch.from_numpy(shown_texts(batch))
    choices = less_mean(answers[torch.from_numpy(batch.labels > 0)], len(batch.tokens))
    return choices, *(x[seen][:, : model.vocab_size] for x in more)


def largest_difference(logits: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """NaN where any logit is none. Raises RunError where shapes differ."""
    if [x.shape for x in logits] != [x.shape for x in expected]:
        raise RunError(
            f"the implementations' outputs have other shapes: {[tuple(x.shape) for x in (*logits, *expected)]}"
        )
    differences = torch.stack([(a - b).abs().max() for a, b in zip(logits, expected, strict=True)])
    return float(differences.max())  # Python's max would lose a NaN
