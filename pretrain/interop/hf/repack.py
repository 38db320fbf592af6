"""The weights of an export in another data type, or in several files with an index, as transformers reads them.

The gate has passed on fp32 weights before. They go from that file to the new ones a tensor at a time.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from pretrain.errors import RunError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_FORMAT = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class StoredAs:
    """Format in which an export stores its weights."""

    dtype: str = "fp32"
    """a key of `DTYPES`"""
    shard_bytes: int | None = None
    """largest size of a file's weights, in bytes, unless one tensor alone is larger; None: one file holds all"""


PLAIN = StoredAs()
"""format in which exports are written at first"""


def size_in_bytes(text: str) -> int:
    """Bytes of a size such as 2GB (decimal, as transformers counts) or 512MiB. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?([KMG]?I?B|)", text.strip().upper())
    if match is None or match[2] not in _UNITS or not (size := int(float(match[1]) * _UNITS[match[2]])):
        raise ValueError(f"{text!r} is no size: write it as 2GB, 500MB or 512MiB")
    return size


def repack(directory: Path, stored: StoredAs) -> None:
    """Replaces the weights in `directory`, and states their type in its config.json. Raises RunError for a value that
    the type cannot hold."""
    dtype, source = DTYPES[stored.dtype], directory / f"fp32-{WEIGHTS}"
    (directory / WEIGHTS).rename(source)
    with safe_open(source, "pt") as opened:
        names = list(opened.keys())
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in names}
        groups = _groups(shapes, dtype.itemsize, stored.shard_bytes)
        files = [
            WEIGHTS if len(groups) == 1 else f"model-{number:05}-of-{len(groups):05}.safetensors"
            for number in range(1, len(groups) + 1)
        ]
        for file, group in zip(files, groups, strict=True):
            values = (_converted(name, opened.get_tensor(name), dtype, stored.dtype) for name in group)
            write_safetensors(directory / file, ((name, shapes[name]) for name in group), dtype, values)
    source.unlink()
    if len(groups) > 1:
        total = dtype.itemsize * sum(map(math.prod, shapes.values()))
        file_of = {name: file for file, group in zip(files, groups, strict=True) for name in group}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(file_of.items()))}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    config = json.loads((directory / "config.json").read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_safetensors(
    path: Path, tensors: Iterable[tuple[str, tuple[int, ...]]], dtype: torch.dtype, values: Iterator[Tensor]
) -> None:
    """A file of `tensors` (name, shape), whose `values` come in the same order and are held one at a time."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, shape in tensors:
        size = dtype.itemsize * math.prod(shape)
        entries[name] = {"dtype": _FORMAT[dtype], "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("xb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for value in values:
            file.write(value.to(dtype).contiguous().flatten().view(torch.uint8).numpy().data)


def _converted(name: str, value: Tensor, dtype: torch.dtype, called: str) -> Tensor:
    rounded = value.to(dtype)
    if not torch.equal(rounded.isfinite(), value.isfinite()):
        raise RunError(f"not exported: {name} has values of {value.abs().max():.3g}, which {called} cannot hold")
    return rounded


def _groups(shapes: dict[str, tuple[int, ...]], item_bytes: int, most: int | None) -> list[list[str]]:
    """Names of each file, in their order."""
    groups: list[list[str]] = [[]]
    held = 0
    for name, shape in shapes.items():
        size = item_bytes * math.prod(shape)
        if groups[-1] and most is not None and held + size > most:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    return groups
