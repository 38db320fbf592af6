"""How an evaluation is made, whatever is evaluated."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.recipes.base import Recipe
from pretrain.evaluate.decoding.base import Decoding


@dataclass(frozen=True)
class Settings:
    """How to evaluate."""

    shots: Sequence[int] | None
    """numbers of solved examples in the prompt; None: 0, 1 and the K of the paper's few-shot setting"""
    limit: int | None = None
    """documents per task (windows of `heldout`), the first ones; None: all"""
    seed: int = 0
    """of the choice of shots, and of generated documents"""
    draws: int = 1
    """choices of shots for each document, the results of which are averaged"""
    data_dir: Path | None = None
    """directory with benchmark files; None: arithmetic is generated"""
    recipe: Recipe | None = None
    """what held-out samples are made by; None: windows of the model's length, for the next token"""
    held_out: Sequence[Dataset] = ()
    """the datasets whose held-out text is scored, of each source; none: that which tasks are made of"""
    how: Decoding | None = None
    """how answers in text are made; None: as the paper makes those of each task"""
    identity: str = ""
    """of the model that is scored: what an interrupted evaluation is only continued with"""
