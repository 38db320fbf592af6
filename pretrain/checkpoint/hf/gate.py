"""The same input through both implementations: what passes over from or to Hugging Face passes this first.

A trained model may turn the rounding of fp32 into more than any fixed limit: two attention kernels of transformers give
Gemma 3 270M logits that are 1.2e-3 apart. Where logits differ by more than `GATE`, the limit is therefore measured: how
far transformers' own logits move when its weights do by a unit in the last place.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.checkpoint.hf.registry import hf_family_of
from pretrain.config.attention import Banded
from pretrain.config.positions import AlibiPositions, RotaryPositions
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.errors import RunError

GATE = 1e-4
"""largest logit difference, fp32, that needs no reason"""
_ROWS = 2
_DRAWS = 4
_UNIT = 2.0**-23  # of fp32, relative
_BEYOND = 64
_COUNTING = ("roberta", "xlm-roberta", "longformer")


@dataclass(frozen=True)
class Agreement:
    """What the gate found of a model that passed."""

    difference: float
    """the largest of logits, fp32"""
    limit: float

    def __str__(self) -> str:
        measured = f"largest logit difference from transformers {self.difference:.2e}"
        if self.limit <= GATE:
            return measured
        return f"{measured}; its own, of weights a unit in the last place away: {self.limit:.2e}"


def pass_gate(verb: str, logits: tuple[Tensor, ...], hf_model: Any, batch: Rows, position_offset: int) -> Agreement:
    """Holds our logits against those of a Hugging Face model, which is of no more use after that. Raises RunError,
    "not VERB: ...", if they differ."""
    expected = hf_logits(hf_model, batch, position_offset)
    difference, limit = largest_difference(logits, expected), GATE
    if difference > limit:
        limit = max(limit, _rounding(hf_model, batch, position_offset, expected))
    if not difference <= limit:
        raise RunError(
            f"not {verb}: logits differ by {difference:.2e} from transformers' {type(hf_model).__name__}, more than "
            f"{limit:.2e}"
        )
    return Agreement(difference, limit)


def _rounding(hf_model: Any, batch: Rows, position_offset: int, expected: tuple[Tensor, ...]) -> float:
    """How far logits move when all weights do by a unit in the last place, up or down as drawn. The most of a few
    draws, as a position that is near to a turning point moves much in some of them and little in others. Weights stay
    moved: a copy would take the memory of another model."""
    draw, moved = torch.Generator().manual_seed(0), []
    for _ in range(_DRAWS):
        with torch.no_grad():
            for weight in hf_model.parameters():
                up = torch.rand(weight.shape, generator=draw) < 0.5
                weight.mul_(torch.where(up, 1 + _UNIT, 1 - _UNIT))
        before, expected = expected, hf_logits(hf_model, batch, position_offset)
        moved.append(largest_difference(before, expected))
    return max(moved)


def rows_for(config: RunConfig) -> Rows:
    """Synthetic rows of the model's full length, with padding, segments and targets where the model reads them.

    Each row is one document with consecutive positions, as Hugging Face's models expect. Without a table of positions,
    rows are only as long as every window's border needs. A class with its own rules for padding gets none. Where a text
    and its translation share a row, positions restart at the translation."""
    model = config.model
    if isinstance(model.positions, RotaryPositions | AlibiPositions):
        reaches = [pattern.reach for pattern in model.attention.kinds if isinstance(pattern, Banded)]
        length = min(model.sequence_length, _BEYOND + max(reaches, default=_BEYOND))
        config = config.model_copy(update={"model": model.model_copy(update={"sequence_length": length})})
    rows = replace(SyntheticStream(config).batch(0, _ROWS, 0, 1), documents=None)
    if not hf_family_of(model).padded and rows.attention_mask is not None:
        rows = replace(rows, attention_mask=np.ones_like(rows.attention_mask))
    return rows


def hf_logits(hf_model: Any, batch: Rows, position_offset: int = 0) -> tuple[Tensor, ...]:
    """What InspectEngine.logits returns, from a Hugging Face model."""
    with torch.no_grad():
        return hf_outputs(hf_model.float().eval(), batch, position_offset)


def hf_outputs(hf_model: Any, batch: Rows, position_offset: int = 0) -> tuple[Tensor, ...]:
    """The same, as `hf_model` is and with its gradients."""
    inputs = {
        "input_ids": batch.tokens,
        "attention_mask": batch.attention_mask,
        "langs" if hf_model.config.model_type == "xlm" else "token_type_ids": batch.segments,
        "position_ids": batch.positions,
        "decoder_input_ids": batch.decoder_tokens,
    }
    tensors = {name: torch.from_numpy(value).long() for name, value in inputs.items() if value is not None}
    if hf_model.config.model_type in _COUNTING:  # or they would follow from which ids are those of padding
        tensors["position_ids"] = (torch.arange(batch.tokens.shape[1]) + position_offset).expand(len(batch.tokens), -1)
    if count := getattr(hf_model.config, "global_tokens", 0):
        tensors["global_attention_mask"] = torch.zeros(batch.tokens.shape, dtype=torch.int64)
        tensors["global_attention_mask"][:, :count] = 1
    outputs = hf_model(**tensors)
    if hasattr(outputs, "prediction_logits"):
        answers = outputs.sop_logits if hasattr(outputs, "sop_logits") else outputs.seq_relationship_logits
        return outputs.prediction_logits, answers.flip(1)
    return (outputs.logits,)


def largest_difference(logits: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """NaN where any logit is none. Raises RunError where shapes differ."""
    if [x.shape for x in logits] != [x.shape for x in expected]:
        raise RunError(
            f"the implementations' outputs have other shapes: {[tuple(x.shape) for x in (*logits, *expected)]}"
        )
    differences = torch.stack([(a - b).abs().max() for a, b in zip(logits, expected, strict=True)])
    return float(differences.max())  # Python's max would lose a NaN
