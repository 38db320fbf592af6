"""What `finetune.py` and `finetune_trainer.py` both train."""

from collections.abc import Sequence
from dataclasses import dataclass

BATCH = 16


@dataclass(frozen=True, kw_only=True)
class Task:
    """A published set, and how it is trained here."""

    figures: Sequence[str]
    """the first is compared"""
    rows: int
    """training rows, drawn once from all"""
    samples: int | None = None
    """training samples, where a row may be several: windows of a long context"""
    validation_rows: int | None = None
    """validation rows, drawn once from all; None: all of them"""
    length: int = 128
    """positions of a row, at most"""
    epochs: int = 1
    learning_rate: float = 2e-4

    @property
    def steps(self) -> int:
        """Optimizer steps of a run."""
        return -(-(self.samples or self.rows) // BATCH) * self.epochs


TASKS = {
    "sst2": Task(figures=("accuracy",), rows=768),
    "cola": Task(figures=("matthews", "accuracy"), rows=8551, length=48, epochs=2, learning_rate=1e-4),
    "stsb": Task(figures=("pearson", "spearman"), rows=4096, validation_rows=500, length=32),
    "mrpc": Task(figures=("f1", "accuracy"), rows=3668, epochs=2, learning_rate=1e-4),
    "rte": Task(figures=("accuracy",), rows=2490, epochs=3, learning_rate=1e-4),
    "squad-shifts": Task(
        figures=("f1_of_tokens", "exact_match"), rows=1024, samples=1050, validation_rows=500, length=384, epochs=2
    ),
    "wnut17": Task(figures=("entity_f1",), rows=1696),
}
