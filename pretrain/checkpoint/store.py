"""Reading checkpoints: which one is valid, and its tensors into any layout.

Every file is checked against the manifest before a checkpoint is used (`verify`), and what the manifest says of tensors
against the engine's own state before anything is read (`load`). Files are safetensors and JSON: nothing is executed.
Collectives take a `group`, that of `file_group` in a run: one rank may read for longer than the default group waits.
"""

import math
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.checkpoint import directory as directories
from pretrain.checkpoint import files
from pretrain.checkpoint.files import ITEM_BYTES, Box, Dtype, Manifest, Stored
from pretrain.engine.base import GlobalPart, Piece
from pretrain.engine.collective import gather, run_on_all_ranks, run_on_rank_0
from pretrain.errors import RunError
from pretrain.run_dir.paths import MANIFEST, complete_checkpoints

_NUMPY: dict[Dtype, str] = {"F32": "<f4", "BF16": "<i2"}
"""what numpy reads a box as; it has no bf16"""
Bounds = list[tuple[int, int]]
Slices = tuple[slice, ...]


def newest_valid(directory: Path, report: Callable[[str], None], group: dist.ProcessGroup | None = None) -> Path | None:
    """The checkpoint to resume from: the newest whose every file agrees with its manifest; None if there is none at
    all. Collective; for the one run that writes to `directory`.

    Damaged ones are reported and set aside under another name, so that they are not counted among those to keep.
    Raises RunError if there are checkpoints and none is valid, and where files can't be accessed: resuming from
    an older one would lose work.
    """

    def passed_over(checkpoint: Path, problem: str) -> None:
        aside = run_on_rank_0(f"setting aside {checkpoint}", lambda: directories.set_aside(checkpoint), group)
        report(f"{problem}; set aside as {aside.name}, trying an older checkpoint")

    def look() -> tuple[list[Path], bool]:
        directories.tidy(directory)
        return complete_checkpoints(directory), any(directory.glob("*.damaged"))

    # One rank's view: shared storage may show others an older one.
    candidates, damaged = run_on_rank_0(f"looking for checkpoints in {directory}", look, group)
    checkpoint = _first_valid(candidates[::-1], passed_over, group)
    if checkpoint is None and (candidates or damaged):
        raise RunError(
            f"no checkpoint in {directory} is intact: restore one, or use another run.dir to start a new run"
        )
    return checkpoint


def first_valid(candidates: list[Path], report: Callable[[str], None], group: dist.ProcessGroup | None = None) -> Path:
    """The first valid checkpoint of `candidates`, nothing being renamed; those passed over are reported. Collective.
    Raises RunError if there is none, and where files can't be accessed."""
    problems: list[str] = []
    candidates = gather(candidates, group)[0]  # a run in progress may have added one while ranks looked

    def passed_over(checkpoint: Path, problem: str) -> None:
        problems.append(problem)
        if checkpoint != candidates[-1]:
            report(f"{problem}; trying another checkpoint")

    valid = _first_valid(candidates, passed_over, group)
    if valid is None:
        raise RunError(f"{problems[-1]}: this checkpoint is damaged, choose another")
    return valid


def verify(checkpoint: Path, group: dist.ProcessGroup | None = None) -> str | None:
    """Damage of a checkpoint, as a sentence naming the file, or None. Collective: ranks share the files. Raises
    RunError where files can't be accessed."""
    rank, world = dist.get_rank(), dist.get_world_size()
    problem = run_on_all_ranks(f"verifying {checkpoint}", lambda: files.damage(checkpoint, rank, world), group)
    return next((text for text in gather(problem, group) if text is not None), None)


def load(
    checkpoint: Path,
    state: dict[str, GlobalPart],
    group: dist.ProcessGroup | None = None,
    passed_over: Container[str] = (),
    added: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Reads the tensors of a verified checkpoint into `state`'s pieces, whatever layout wrote them. Returns the bytes
    that this rank read: just those its pieces hold, each once. Collective. `added` says of names in `state` which other
    tensor of the checkpoint, of the same shape, is added to theirs, in fp32.

    Raises RunError if the checkpoint's tensors are not those of `state`, over all ranks: other names, other shapes,
    boxes that leave a gap, overlap or reach beyond their file. A `state` of weights only passes over the optimizer's;
    the checkpoint may have others of the names in `passed_over`.
    """
    local_shapes = {name: part.shape for name, part in state.items()}
    shapes = {name: shape for of_rank in gather(local_shapes, group) for name, shape in of_rank.items()}
    return run_on_all_ranks(
        f"loading {checkpoint}", lambda: _load(checkpoint, state, shapes, passed_over, added), group
    )


def read_full_tensor(checkpoint: Path, manifest: Manifest, name: str) -> np.ndarray:
    """Reads a global tensor of a verified checkpoint, in one process and without an engine: fp32, in its global shape.
    Raises RunError if a part of it is missing."""
    stored = manifest.tensors[name]
    _check_boxes(checkpoint / MANIFEST, name, manifest)
    value = torch.empty(stored.shape)
    _read(checkpoint, manifest, {name: GlobalPart(stored.shape, (Piece((0,) * value.dim(), value),), saves=False)})
    return value.numpy()


def read_whole(checkpoint: Path, manifest: Manifest, state: Mapping[str, GlobalPart]) -> None:
    """Reads the tensors of a checkpoint into `state`, whose pieces are whole tensors, in one process. A box that is a
    whole tensor is read into its place, so no part of the file stays in memory. Raises RunError for tensors that the
    checkpoint does not have in this shape."""
    path = checkpoint / MANIFEST
    for name, part in state.items():
        if name not in manifest.tensors:
            raise RunError(f"{path} has no tensor {name}, which this config needs")
        _check_shape(path, name, manifest, part.shape)
        boxes, (piece,) = manifest.tensors[name].boxes, part.pieces
        value = piece.value
        in_place = boxes[0].dtype == "F32" and value.dtype == torch.float32 and value.is_contiguous()
        if len(boxes) > 1 or value.is_cuda or not in_place:
            _read(checkpoint, manifest, {name: part})
            continue
        with files.open_plain(checkpoint / boxes[0].file) as file:
            file.seek(boxes[0].position)
            wanted = value.detach().numpy().data.cast("B")
            if file.readinto(wanted) != len(wanted):
                raise RunError(f"{path} places values beyond the end of {boxes[0].file}")


def _first_valid(
    candidates: Iterable[Path], passed_over: Callable[[Path, str], None], group: dist.ProcessGroup | None
) -> Path | None:
    for checkpoint in candidates:
        problem = verify(checkpoint, group)
        if problem is None:
            return checkpoint
        passed_over(checkpoint, problem)
    return None


def _load(
    checkpoint: Path,
    state: dict[str, GlobalPart],
    shapes: dict[str, tuple[int, ...]],
    passed_over: Container[str],
    added: Mapping[str, str],
) -> int:
    manifest = Manifest.read(checkpoint)
    _check_names(checkpoint / MANIFEST, manifest, shapes, passed_over)
    sums = {name: part for name, part in state.items() if name in added}
    read_bytes = _read(checkpoint, manifest, {name: part for name, part in state.items() if name not in sums})
    for name, part in sums.items():
        _check_shape(checkpoint / MANIFEST, added[name], manifest, part.shape)
        terms = [_in_fp32(part), _in_fp32(part)]
        for term, tensor in zip(terms, (name, added[name]), strict=True):
            read_bytes += _read(checkpoint, manifest, {tensor: term})
        for piece, first, second in zip(part.pieces, terms[0].pieces, terms[1].pieces, strict=True):
            piece.value.copy_(first.value + second.value)
    return read_bytes


def _in_fp32(part: GlobalPart) -> GlobalPart:
    """Memory in fp32 for the same pieces."""
    pieces = (Piece(piece.offset, torch.empty(piece.value.shape)) for piece in part.pieces)
    return GlobalPart(part.shape, tuple(pieces), saves=False)


def planned_reads(
    checkpoint: Path,
    state: dict[str, GlobalPart],
    weights: dict[str, tuple[int, ...]],
    passed_over: Container[str] = (),
) -> dict[str, int]:
    """Bytes that `load` would read of each file for one rank's `state`, of which none is read. Raises RunError, as
    `load`, if the checkpoint's tensors are not those of `state`, or its weights not `weights`: the shapes of all
    ranks' `model/...`; it may have others of the names in `passed_over`."""
    manifest = Manifest.read(checkpoint)
    path = checkpoint / MANIFEST
    _check_names(path, manifest, weights, passed_over)
    for name, part in state.items():
        if name not in manifest.tensors:
            raise RunError(f"{path} has no tensor {name}, which this config needs")
        _check_shape(path, name, manifest, part.shape)
    plan = _sources_by_file(checkpoint, manifest, state)
    return {
        name: sum(ITEM_BYTES[box.dtype] * target.numel() for box, target, _ in sources)
        for name, sources in plan.items()
    }


def _read(checkpoint: Path, manifest: Manifest, state: dict[str, GlobalPart]) -> int:
    read_bytes = 0
    for name, sources in _sources_by_file(checkpoint, manifest, state).items():
        with files.open_plain(checkpoint / name) as file:
            for box, target, in_box in sources:
                # Copy-on-write, only because torch wants arrays that it could write to.
                values = np.memmap(file, _NUMPY[box.dtype], "c", box.position, box.shape)[in_box]
                stored = torch.from_numpy(values)
                target.copy_(stored if box.dtype == "F32" else stored.view(torch.bfloat16))
                read_bytes += values.nbytes
    return read_bytes


def _sources_by_file(
    checkpoint: Path, manifest: Manifest, state: dict[str, GlobalPart]
) -> dict[str, list[tuple[Box, Tensor, Slices]]]:
    """The boxes that the pieces of `state` come from, by file, each with the part of a piece that it fills, and the
    part of the box. All files are as long as these need."""
    path = checkpoint / MANIFEST
    plan: dict[str, list[tuple[Box, Tensor, Slices]]] = {}
    for name, part in state.items():
        for piece in part.pieces:
            for box, in_piece, in_box in _sources(path, name, manifest.tensors[name], piece):
                plan.setdefault(box.file, []).append((box, piece.value[in_piece], in_box))
    for name, sources in plan.items():
        with files.open_plain(checkpoint / name) as file:
            if max(box.end for box, *_ in sources) > os.fstat(file.fileno()).st_size:
                raise RunError(f"{path} places values beyond the end of {name}")
    return plan


def _check_names(
    path: Path, manifest: Manifest, shapes: dict[str, tuple[int, ...]], passed_over: Container[str]
) -> None:
    """Every tensor of the config is there, in its shape and cut into boxes that lie in it; no other is."""
    weights_only = all(name.startswith("model/") for name in shapes)
    for name in sorted(shapes.keys() | manifest.tensors.keys()):
        if name not in manifest.tensors:
            raise RunError(f"{path} has no tensor {name}, which this config needs")
        if name not in shapes:
            if name in passed_over or (weights_only and not name.startswith("model/")):
                continue
            raise RunError(f"{path} has a tensor {name}, which this config does not know")
        _check_shape(path, name, manifest, shapes[name])


def _check_shape(path: Path, name: str, manifest: Manifest, shape: tuple[int, ...]) -> None:
    stored = manifest.tensors[name]
    if stored.shape != shape:
        raise RunError(f"{path}: {name} has shape {stored.shape}, and {shape} with this config")
    _check_boxes(path, name, manifest)


def _check_boxes(path: Path, name: str, manifest: Manifest) -> None:
    stored = manifest.tensors[name]
    for box in stored.boxes:
        _check_box(path, name, stored, box, manifest)
    if _overlap(stored.boxes):
        raise RunError(f"{path} has values of {name} twice")


def _check_box(path: Path, name: str, stored: Stored, box: Box, manifest: Manifest) -> None:
    if not stored.shape:
        raise RunError(f"{path}: {name} has no dimensions, and every tensor of a checkpoint has some")
    fits = len(box.offset) == len(box.shape) == len(stored.shape) and all(
        offset >= 0 and size > 0 and offset + size <= dimension
        for offset, size, dimension in zip(box.offset, box.shape, stored.shape, strict=True)
    )
    if not fits:
        raise RunError(f"{path} has a box of {name} that does not lie in it")
    if box.file not in manifest.files or box.position < 0 or box.position % ITEM_BYTES[box.dtype]:
        raise RunError(f"{path} places values of {name} where no file has any")


def _sources(path: Path, name: str, stored: Stored, piece: Piece) -> Iterator[tuple[Box, Slices, Slices]]:
    """The boxes that `piece` comes from, each with the part they share: within the piece, and within the box."""
    shape = tuple(piece.value.shape)
    covered = 0
    for box in stored.boxes:
        shared = _shared(piece.offset, shape, box.offset, box.shape)
        if shared is not None:
            covered += math.prod(high - low for low, high in shared)
            yield box, _within(shared, piece.offset), _within(shared, box.offset)
    if covered != math.prod(shape):  # boxes do not overlap
        raise RunError(f"{path} lacks some values of {name}")


def _overlap(boxes: Iterable[Box]) -> bool:
    """Whether any two share a value. Tensors are cut into thousands of boxes, rows into pieces of rows among them."""
    ordered = sorted(boxes, key=lambda box: box.offset)
    for index, box in enumerate(ordered):
        last = tuple(offset + size - 1 for offset, size in zip(box.offset, box.shape, strict=True))
        for later in islice(ordered, index + 1, None):
            if later.offset > last:
                break  # it begins after the box's last value, as do all that follow
            if _shared(box.offset, box.shape, later.offset, later.shape) is not None:
                return True
    return False


def _shared(
    offset_a: tuple[int, ...], shape_a: tuple[int, ...], offset_b: tuple[int, ...], shape_b: tuple[int, ...]
) -> Bounds | None:
    """[low, high) of what two boxes share in each dimension; None if they share nothing."""
    bounds = [
        (max(a, b), min(a + size_a, b + size_b))
        for a, size_a, b, size_b in zip(offset_a, shape_a, offset_b, shape_b, strict=True)
    ]
    return bounds if all(low < high for low, high in bounds) else None


def _within(bounds: Bounds, offset: tuple[int, ...]) -> Slices:
    return tuple(slice(low - start, high - start) for (low, high), start in zip(bounds, offset, strict=True))
