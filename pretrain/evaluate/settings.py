"""Settings of an evaluation, for any model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.dataset.source import DataSource
from data_pipeline.recipes.base import Recipe
from pretrain.evaluate.decoding.base import Decoding


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """Settings of an evaluation."""

    shots: Sequence[int] | None
    """numbers of few-shot examples in the prompt; None: 0, 1 and the K of the paper's few-shot setting"""
    limit: int | None = None
    """documents per task (windows of `heldout`), the first ones; None: all"""
    seed: int = 0
    """seed of the few-shot examples and of generated documents"""
    draws: int = 1
    """random draws of few-shot examples per document, whose results are averaged"""
    data_dir: Path | None = None
    """directory with benchmark files; None: arithmetic is generated"""
    recipe: Recipe | None = None
    """recipe of the held-out samples; None: windows, to predict the next token"""
    window: int | None = None
    """tokens of a window of held-out text; None: all that the model reads at once"""
    lanes: int = 0
    """lanes of held-out text, for a model with memory; 0: it has none"""
    held_out: Sequence[DataSource] = ()
    """the datasets whose held-out text is scored, one per source; empty: the dataset that tasks are made of"""
    decoding: Decoding | None = None
    """decoding of generated answers; None: the paper's for each task"""
    identity: str = ""
    """identity of the scored model; an interrupted evaluation is resumed only if it is the same"""
