"""Objectives that suit a model, and those that the sources of one run may have."""

from collections.abc import Collection

from data_pipeline.recipes.objective import Objective
from data_pipeline.recipes.registry import OBJECTIVES
from pretrain.config.downsampling import DownsamplingSettings
from pretrain.config.families import CAPABILITIES
from pretrain.config.model import Model
from pretrain.config.part_keys import keys_of_kind
from pretrain.config.parts.registry import PARTS

_SHARED = (
    *("loss", "columns", "task_head", "row_length", "texts_per_row"),
    *("label_smoothing", "z_loss"),
)
"""Attributes of an objective that a model and its loss read."""


def check_suits(model: Model, objective: Objective) -> None:
    """Raises ValueError for an objective that the model cannot be trained on."""
    if model.shape not in objective.suits:
        fitting = [name for name, kind in OBJECTIVES.items() if model.shape in kind.suits]
        raise ValueError(
            f"objective.name={objective.name} does not suit model.family={model.family}: use {' or '.join(fitting)}"
        )
    for part in PARTS.values():
        part.check_objective(model, objective)
    if "label_positions" in objective.columns and model.downsampling is None:
        having = " or ".join(name for name, can in CAPABILITIES.items() if _downsamples(can.parts))
        raise ValueError(
            f"objective.name={objective.name} predicts at positions that each row names, which is for the "
            f"{having or 'no installed'} family: choose another for {model.family}"
        )
    masks = getattr(objective, "document_mask", False)
    if (masks or getattr(objective, "packing", None) == "best_fit") and not model.capabilities.packing:
        having = " or ".join(name for name, can in CAPABILITIES.items() if can.packing)
        key = "document_mask=true" if masks else "packing=best_fit"
        raise ValueError(f"objective.{key} is for the {having} family: leave it out for {model.family}")
    if "next_sentence" in objective.columns and not (model.segments > 1 and model.binary_head):
        raise ValueError(
            f"objective.{objective.loss} makes samples of two segments and asks whether the second follows: set "
            "model.segments=2 and model.binary_head=true"
        )
    if model.segments < objective.num_segments:
        raise ValueError(
            f"objective.name={objective.name} tells {objective.num_segments} languages apart: set "
            f"model.segments={objective.num_segments}, or more"
        )
    if "order" in objective.columns and not model.capabilities.query_stream:
        having = " or ".join(name for name, can in CAPABILITIES.items() if can.query_stream)
        raise ValueError(
            f"objective.name={objective.name} predicts at positions without a token, which are for the {having} "
            f"family: choose another objective for {model.family}"
        )
    if "positions" in objective.columns and model.positions.counts_in_row:
        raise ValueError(
            f"objective.name={objective.name} restarts positions at each text, and model.positions="
            f"{model.positions.name} uses distances in the row: use learned or sinusoidal"
        )


def _downsamples(parts: Collection[str]) -> bool:
    """Whether one of these parts makes a position of layers out of several of a row."""
    return any(key.name in parts for key in keys_of_kind(DownsamplingSettings))


def check_goes_with(source: str, its_own: Objective, of_run: Objective) -> None:
    """Raises ValueError for the objective of a source whose rows could not go through the run's model and loss."""
    if of_run.labelled or of_run.loss != "tokens":
        raise ValueError(
            f"the source {source} has an objective of its own, and the run's objective.name={of_run.name} is not one "
            "of tokens of text: make the run's the one of its text"
        )
    for key in _SHARED:
        ours, theirs = getattr(its_own, key), getattr(of_run, key)
        if ours != theirs:
            shown = [sorted(value) if isinstance(value, frozenset) else value for value in (ours, theirs)]
            raise ValueError(
                f"the objective {its_own.name} of the source {source} has {key} {shown[0]}, and the run's objective "
                f"{of_run.name} {shown[1]}: rows of all sources go through one model and one loss, so make them equal"
            )
