"""A rank's part of a checkpoint, copied to host memory: training continues while it is written."""

import math
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.checkpoint.files import ITEM_BYTES, Dtype
from pretrain.checkpoint.state import Record
from pretrain.engine.base import GlobalPart
from pretrain.errors import RunError


@dataclass(frozen=True)
class Part:
    """A box of a global tensor that this rank saves."""

    name: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: Dtype

    @property
    def size_bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


_DTYPES: dict[torch.dtype, Dtype] = {torch.float32: "F32", torch.bfloat16: "BF16"}
_TORCH = {name: dtype for dtype, name in _DTYPES.items()}
Pieces = list[tuple[Part, Tensor]]


@dataclass(frozen=True)
class Snapshot:
    """This rank's values, those of `parts` one after the other in `buffer` [bytes, on the host]."""

    record: Record
    tokenizer: bytes
    parts: list[Part]
    buffer: Tensor
    source_tokenizer: bytes | None = None

    @property
    def size_bytes(self) -> int:
        return self.buffer.nbytes

    def values(self) -> Iterator[memoryview]:
        """The bytes of all parts, in their order."""
        yield memoryview(self.buffer.numpy().data).cast("B")


@dataclass(frozen=True)
class StreamedSnapshot:
    """A rank's values that were never in memory together: `tensors` are made one at a time, in the order of `parts`,
    while they are written."""

    record: Record
    tokenizer: bytes
    parts: list[Part]
    tensors: Iterable[Tensor]
    source_tokenizer: bytes | None = None

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def values(self) -> Iterator[memoryview]:
        """The bytes of all parts, in their order."""
        for value in self.tensors:  # weights, which are saved in fp32
            yield memoryview(value.float().contiguous().view(-1).numpy().data).cast("B")


def pieces_of(state: dict[str, GlobalPart]) -> Pieces:
    """Pieces of `state` that this rank saves; those in fp32 first, so that all are aligned in memory and in a file."""
    pieces = [
        (Part(name, part.shape, piece.offset, tuple(piece.value.shape), _DTYPES[part.dtype]), piece.value)
        for name, part in state.items()
        if part.saves
        for piece in part.pieces
    ]
    return sorted(pieces, key=lambda piece: -ITEM_BYTES[piece[0].dtype])


def allocate(pieces: Pieces) -> Tensor:
    """Host memory for all values: [bytes] uint8; page-locked if they come from a GPU."""
    buffer = torch.empty(sum(part.size_bytes for part, _ in pieces), dtype=torch.uint8)
    buffer.zero_()  # which has the machine really give it
    if any(value.is_cuda for _, value in pieces):
        _lock_pages(buffer)
    return buffer


def copy(pieces: Pieces, buffer: Tensor) -> None:
    """The values as they are now, into what `allocate` gave for them."""
    targets = buffer.split([part.size_bytes for part, _ in pieces])
    for (part, value), target in zip(pieces, targets, strict=True):
        target.view(_TORCH[part.dtype]).view(value.shape).copy_(value, non_blocking=True)
    if any(value.is_cuda for _, value in pieces):
        torch.cuda.synchronize()


def _lock_pages(buffer: Tensor) -> None:
    """Page-locks `buffer`. `pin_memory=True` would round the size up to a power of two: up to twice the memory."""
    status = int(torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0))
    if status != 0:
        raise RunError(
            f"CUDA cannot page-lock the {buffer.nbytes} bytes of host memory for this rank's part of a checkpoint "
            f"(error {status}): start fewer ranks per machine, or use machines with more memory"
        )
    # A run keeps it to its end. What makes several savers in one process may get the same address again.
    weakref.finalize(buffer, torch.cuda.cudart().cudaHostUnregister, buffer.data_ptr())
