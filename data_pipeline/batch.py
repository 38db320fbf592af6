"""The only types that cross into training: a Batch, and the Cursor that says where the data stands."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError


@dataclass(frozen=True)
class Cursor:
    """The whole state of the data: how many samples the run has consumed, and of which order."""

    samples: int
    """Samples consumed by the run so far, over all data ranks."""
    fingerprint: str
    """Digest of everything the order depends on (datasets, weights, seed, sequence length)."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Cursor:
        """The inverse of `to_dict`; raises DataError when `values` is not a cursor."""
        if set(values) != {"samples", "fingerprint"} or int(values["samples"]) < 0:
            raise DataError(f"This is not a data cursor: {values!r}; the checkpoint it came from is damaged.")
        return cls(samples=int(values["samples"]), fingerprint=str(values["fingerprint"]))


@dataclass(frozen=True)
class Batch:
    """One data rank's rows of a global batch."""

    tokens: NDArray[np.int64]
    """[rows, length] what the model reads."""
    labels: NDArray[np.int64]
    """[rows, length] what it should say at each position."""
    loss_mask: NDArray[np.float32]
    """[rows, length] 1 where the label counts, 0 where it does not."""
    sample_ids: NDArray[np.int64]
    """[global_rows, 3] (source, epoch, window) of every row of the *global* batch, in order, the same on every rank."""
    cursor: Cursor
    """Where the data stands after this batch."""

    @property
    def data_hash(self) -> str:
        """16 hex digits over the ids of the global batch: equal on any layout that sees the same samples."""
        return hashlib.sha256(np.ascontiguousarray(self.sample_ids, dtype="<i8").tobytes()).hexdigest()[:16]
