"""Inputs that a model of transformers reads of a batch, and its answers."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline.batch import SPAN_START, Rows
from pretrain.config.model import Model

_COUNTING = ("roberta", "xlm-roberta", "longformer")
"""`model_type` of models whose positions would follow from which ids are those of padding"""


def hf_answers(hf_model: Any, batch: Rows, model: Model) -> tuple[Tensor, ...]:
    """Answers of a Hugging Face model, as `gate.our_answers` returns them."""
    if model.task_head is None:
        return hf_logits(hf_model, batch, model.position_offset)
    with torch.no_grad():
        hf_model.float().eval()
        if model.task_head.kind != "choice":
            return head_outputs(hf_model, batch, model.position_offset)
        outputs = hf_model(**choice_inputs(hf_model, batch, model))
        if not hasattr(outputs, "mc_logits"):
            return (less_mean(outputs.logits, len(batch.tokens)),)
        answers = less_mean(outputs.mc_logits, len(batch.tokens))
        if not model.has_vocabulary_logits:
            return (answers,)
        logits = outputs.logits.flatten(1, 2)[torch.from_numpy(shown_texts(batch))]
        return answers, logits[:, : model.vocab_size]


def choice_inputs(hf_model: Any, batch: Rows, model: Model) -> dict[str, Tensor]:
    """Inputs that a class of transformers for choices reads of `batch`, in which all rows have equally many."""
    rows, seen = len(batch.tokens), shown_texts(batch)
    count = rows * (1 + int(np.max(batch.documents)))  # type: ignore[arg-type]
    apart = {
        name: values.reshape(count, -1)
        for name, _, values in batch.columns()
        if name in ("tokens", "labels", "loss_mask", "segments")
    }
    shown = seen.reshape(count, -1) if model.has_encoder else None
    inputs = hf_inputs(hf_model, Rows(**apart, attention_mask=shown), model.position_offset)
    if model.is_causal:
        inputs["mc_token_ids"] = torch.from_numpy((apart["labels"] > 0).argmax(axis=1))
    return {name: values.reshape(rows, count // rows, *values.shape[1:]) for name, values in inputs.items()}


def head_outputs(hf_model: Any, batch: Rows, position_offset: int = 0) -> tuple[Tensor, ...]:
    """The answers of a class of transformers with a task head where the loss mask of `batch` is 1, as `hf_model` is and
    with its gradients."""
    inputs = hf_inputs(hf_model, batch, position_offset)
    inputs.pop("decoder_input_ids", None)  # these classes make them of the input
    answered = torch.from_numpy(batch.loss_mask > 0)
    if hasattr(hf_model, "end_logits"):
        return (_conditional_answers(hf_model, inputs, batch)[answered],)
    outputs = hf_model(**inputs)
    if hasattr(outputs, "start_logits"):
        return (torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)[answered],)
    logits = outputs.logits
    if "ForPreTraining" in type(hf_model).__name__:  # ELECTRA's, of one number for each position
        logits = logits[..., None]
    return (logits if logits.dim() == 2 else logits[answered],)


def _conditional_answers(hf_model: Any, inputs: dict[str, Tensor], batch: Rows) -> Tensor:
    """[B, S, 3]: logits of starts, of ends given the labelled start, and of ends given the first position."""
    states = hf_model.transformer(**inputs)[0]
    starts = torch.from_numpy(((batch.labels & SPAN_START) > 0).argmax(axis=1))
    ends = [hf_model.end_logits(states, start_positions=given) for given in (starts, torch.zeros_like(starts))]
    return torch.stack([hf_model.start_logits(states), *ends], dim=-1)


def hf_logits(hf_model: Any, batch: Rows, position_offset: int = 0) -> tuple[Tensor, ...]:
    """Logits of a Hugging Face model, as InspectEngine.logits returns them."""
    with torch.no_grad():
        return hf_outputs(hf_model.float().eval(), batch, position_offset)


def hf_outputs(hf_model: Any, batch: Rows, position_offset: int = 0) -> tuple[Tensor, ...]:
    """The same, as `hf_model` is and with its gradients."""
    outputs = hf_model(**hf_inputs(hf_model, batch, position_offset))
    if hasattr(outputs, "prediction_logits"):
        answers = outputs.sop_logits if hasattr(outputs, "sop_logits") else outputs.seq_relationship_logits
        return outputs.prediction_logits, answers.flip(1)
    return (outputs.logits if hasattr(outputs, "logits") else outputs.last_hidden_state,)


def hf_inputs(hf_model: Any, batch: Rows, position_offset: int = 0) -> dict[str, Tensor]:
    """Inputs that `hf_model` reads of `batch`."""
    inputs = {
        "input_ids": batch.tokens,
        "attention_mask": batch.attention_mask,
        "langs" if hf_model.config.model_type == "xlm" else "token_type_ids": batch.segments,
        "position_ids": batch.positions,
        "decoder_input_ids": batch.decoder_tokens,
    }
    if batch.order is not None:
        return _two_streams(batch, batch.order)
    if hasattr(hf_model, "sequence_summary") and hf_model.config.model_type == "xlnet":
        inputs = _padded_before(inputs)
    tensors = {name: torch.from_numpy(value).long() for name, value in inputs.items() if value is not None}
    if hf_model.config.model_type in _COUNTING:  # or they would follow from which ids are those of padding
        tensors["position_ids"] = (torch.arange(batch.tokens.shape[1]) + position_offset).expand(len(batch.tokens), -1)
    count = getattr(hf_model.config, "global_tokens", 0)
    if count or hf_model.config.model_type == "longformer":  # some of its classes have global tokens where none is said
        tensors["global_attention_mask"] = torch.zeros(batch.tokens.shape, dtype=torch.int64)
        tensors["global_attention_mask"][:, :count] = 1
    return tensors


def _padded_before(inputs: dict[str, np.ndarray | None]) -> dict[str, np.ndarray | None]:
    """These columns with the padding at the beginning of rows: the last position answers."""
    shown = inputs["attention_mask"]
    assert shown is not None, "rows of an encoder have a mask of padding"
    places = (np.arange(shown.shape[1]) + shown.sum(axis=1, keepdims=True)) % shown.shape[1]
    return {
        name: None if values is None else np.take_along_axis(values, places, axis=1) for name, values in inputs.items()
    }


def text_length(order: np.ndarray) -> int:
    """Positions before the queries, which are as many in each row."""
    return int((order[0] % 2 == 0).sum())


def _two_streams(batch: Rows, order: np.ndarray) -> dict[str, Tensor]:
    """Inputs that XLNet reads of rows with queries, of which each row has as many, behind its text. It answers them
    alone."""
    assert batch.positions is not None
    assert batch.segments is not None
    text = text_length(order)
    seen, places = order[:, :text], batch.positions[:, text:]
    targets = places[..., None] == np.arange(text)
    own = np.where(targets.any(axis=1), seen - 1, seen)  # a target's query does not see it
    shown = {} if batch.attention_mask is None else {"attention_mask": torch.from_numpy(batch.attention_mask).float()}
    return {
        **{name: values[:, :text] for name, values in shown.items()},
        "input_ids": torch.from_numpy(batch.tokens[:, :text]).long(),
        "token_type_ids": torch.from_numpy(batch.segments[:, :text]).long(),
        "perm_mask": torch.from_numpy(own[:, :, None] < seen[:, None, :]).float(),
        "target_mapping": torch.from_numpy(targets).float(),
    }


def less_mean(answers: Tensor, rows: int) -> Tensor:
    """[rows, choices]: less the mean of each row's choices, which no probability depends on."""
    of_rows = answers.reshape(rows, -1)
    return of_rows - of_rows.mean(dim=1, keepdim=True)


def shown_texts(batch: Rows) -> np.ndarray:
    """[rows, S] where the texts of choices are, which lie side by side."""
    assert batch.documents is not None, "choices lie side by side"
    return batch.documents >= 0
