"""The same input through both implementations: what passes over from or to Hugging Face passes this first."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.config.attention import Banded
from pretrain.config.positions import RotaryPositions
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.errors import RunError

GATE = 1e-4
"""largest logit difference, fp32"""
_ROWS = 2
_BEYOND = 64


def rows_for(config: RunConfig) -> Rows:
    """Made-up input of the model's whole length, with padding, segments and targets where it reads some. Rows are of
    one document each, which is what Hugging Face's models are for. Rotary positions have no table that could be wrong
    at its end: rows are then no longer than what shows every window's border."""
    model = config.model
    if isinstance(model.positions, RotaryPositions):
        reaches = [pattern.reach for pattern in model.attention.kinds if isinstance(pattern, Banded)]
        length = min(model.sequence_length, _BEYOND + max(reaches, default=_BEYOND))
        config = config.model_copy(update={"model": model.model_copy(update={"sequence_length": length})})
    return replace(SyntheticStream(config).batch(0, _ROWS, 0, 1), documents=None)


def hf_logits(theirs: Any, batch: Rows, position_offset: int = 0) -> tuple[Tensor, ...]:
    """What InspectEngine.logits returns, from a Hugging Face model."""
    with torch.no_grad():
        return hf_outputs(theirs.float().eval(), batch, position_offset)


def hf_outputs(theirs: Any, batch: Rows, position_offset: int = 0) -> tuple[Tensor, ...]:
    """The same, as `theirs` is and with its gradients."""
    inputs = {
        "input_ids": batch.tokens,
        "attention_mask": batch.attention_mask,
        "token_type_ids": batch.segments,
        "decoder_input_ids": batch.decoder_tokens,
    }
    tensors = {name: torch.from_numpy(value).long() for name, value in inputs.items() if value is not None}
    if theirs.config.model_type == "roberta":  # or they would follow from which ids are those of padding
        tensors["position_ids"] = (torch.arange(batch.tokens.shape[1]) + position_offset).expand(len(batch.tokens), -1)
    outputs = theirs(**tensors)
    if hasattr(outputs, "prediction_logits"):
        return outputs.prediction_logits, outputs.seq_relationship_logits.flip(1)
    return (outputs.logits,)


def largest_difference(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> float:
    """NaN where any logit is none. Raises RunError where shapes differ."""
    if [x.shape for x in ours] != [x.shape for x in theirs]:
        raise RunError(f"the implementations' outputs have other shapes: {[tuple(x.shape) for x in (*ours, *theirs)]}")
    differences = torch.stack([(a - b).abs().max() for a, b in zip(ours, theirs, strict=True)])
    return float(differences.max())  # Python's max would lose a NaN
