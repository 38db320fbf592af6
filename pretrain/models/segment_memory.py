"""Memory across segments (Transformer-XL: Dai et al. 2019, arXiv 1901.02860, section 3.2): each layer attends to what
it read of the segment before, too, without a gradient.

Row r of a step continues row r of the step before, so the memory of a row is the end of that row's input of each layer.
Steps read one buffer and write another, which takes its place when the step ends: recomputation reads what the forward
pass read, and writes the same again.

Shapes: M positions of memory, B rows of a micro-batch, S positions, H width.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pretrain.attention.cases import KeyPlaces
from pretrain.models.inputs import MicroBatch
from pretrain.models.network import Network


class SegmentMemory:
    """The memory of the layers of `chunks`, of `rows` rows and `length` positions. It is kept in fp32, which holds
    values of half precision as they are. `advance`: positions of a row that lie before the row that continues it."""

    def __init__(
        self, chunks: Iterable[Network], *, rows: int, length: int, hidden: int, advance: int, device: torch.device
    ) -> None:
        names = [str(layer.global_name) for chunk in chunks for layer in chunk.decoder.layers]
        self.rows, self.length, self.kept = rows, length, advance
        self.current = {name: torch.zeros(rows, length, hidden, device=device) for name in names}
        """[rows, M, H] of each layer, by its name in the model: live"""
        self._following = {name: torch.zeros_like(value) for name, value in self.current.items()}

    def attached(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """The micro-batches of a step, each with the memory of its rows."""
        found, start = list[MicroBatch](), 0
        for batch in batches:
            rows = len(batch.tokens_BS)
            assert batch.before_B is not None, "rows in lanes say how far they are"
            first_B = (self.length - batch.before_B).clamp(min=0)
            memory = RowsMemory(self, slice(start, start + rows), first_B)
            found.append(replace(batch, memory=memory, places=_with_memory(batch.places, first_B, self.length)))
            start += rows
        return found

    @property
    def following(self) -> Iterable[Tensor]:
        """Tensors that layers have written for the next step: live."""
        return self._following.values()

    def advance(self) -> None:
        """Ends a step."""
        self.current, self._following = self._following, self.current


@dataclass(frozen=True)
class RowsMemory:
    """The memory of the rows of a micro-batch."""

    memory: SegmentMemory
    rows: slice
    first_B: Tensor
    """the first position that there is: a row that begins its text has none"""

    def exchange(self, layer: str, x_SBH: Tensor) -> Tensor:
        """[M, B, H]: what the layer read before. Keeps what it reads now, `x_SBH`, for the next step."""
        held_BMH = self.memory.current[layer][self.rows].to(x_SBH.dtype)
        exists_BM = torch.arange(held_BMH.shape[1], device=held_BMH.device) >= self.first_B[:, None]
        read_MBH = torch.where(exists_BM[..., None], held_BMH, 0.0).transpose(0, 1)
        with torch.no_grad():
            following = torch.cat((read_MBH, x_SBH[: self.memory.kept].detach()))[-self.memory.length :]
            self.memory._following[layer][self.rows] = following.transpose(0, 1).float()
        return read_MBH


def _with_memory(places: KeyPlaces | None, first_B: Tensor, length: int) -> KeyPlaces:
    """`places` with `length` keys of memory before those of the row: all positions see them, they are of the first
    segment, and they lie before its first position, which may count down."""
    if places is None:
        return KeyPlaces(first_B=first_B)
    columns: dict[str, Tensor | None] = {"first_B": first_B}
    for name in ("positions_BK", "segments_BK", "order_BK"):
        values = getattr(places, name)
        if values is None:
            continue
        before = values.new_zeros(len(values), length)
        if name == "positions_BK":
            step_B1 = values[:, 1:2] - values[:, :1]
            before = values[:, :1] + step_B1 * torch.arange(-length, 0, device=values.device)
        columns[name] = torch.cat((before, values), dim=1)
    return replace(places, **columns)
