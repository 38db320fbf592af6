"""The safetensors of a folder of Hugging Face's format: which tensors they hold, and their values, one after the other.
Nothing in them is run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from pretrain.errors import ConfigError
from pretrain.interop.hf import fp8_blocks
from pretrain.interop.hf.released import Released

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_FLOATS = ("F64", "F32", "F16", "BF16")
_COUNTERS = ("position_ids", "attn.bias", "attention.bias", "masked_bias")  # of older files: computed, no weights
_JSON_BYTES = 2**26


@dataclass(frozen=True)
class Weights:
    """Tensors by the names that the model's class has for them; factors of weights in 8 bits are not among them."""

    shapes: dict[str, tuple[int, ...]]
    file_of: Mapping[str, Path]
    """file of each tensor, by its name in the files"""
    stored_names: Mapping[str, str] | None = None
    """names in the files; None: `shapes` has them, and the values are as they are stored"""

    def values(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Values of the tensors with these names that are there; in fp32 of a type of 8 bits. Raises ConfigError for
        files that cannot be read."""
        stored = self.stored_names or {}
        wanted = {name: stored.get(name, name) for name in names if name in self.shapes}
        of_files = set(wanted.values())
        if self.stored_names is not None:
            of_files |= {name + fp8_blocks.SCALE for name in of_files}.intersection(self.file_of)
        found: dict[str, Tensor] = {}
        for file in sorted({self.file_of[name] for name in of_files}):
            with _opened(file) as opened:
                found |= {name: opened.get_tensor(name) for name in of_files if self.file_of[name] == file}
        return {new: _in_floats(found, name) for new, name in wanted.items()}

    def lazy(self) -> "dict[str, LazyTensor] | None":
        """Tensors that transformers loads in place of the files; None: it reads the files."""
        return None if self.stored_names is None else {name: LazyTensor(self, name) for name in self.shapes}


class LazyTensor:
    """A tensor that is read when it is asked for, `tensor[...]`, as transformers does of one that it loads from a
    file."""

    def __init__(self, weights: Weights, name: str) -> None:
        self._weights, self._name = weights, name

    def __getitem__(self, _: object) -> Tensor:
        return self._weights.values([self._name])[self._name]


def read_weights(path: Path, found: Released) -> Weights:
    """Raises ConfigError for files that cannot be read completely, or that would execute code."""
    shapes: dict[str, tuple[int, ...]] = {}
    file_of: dict[str, Path] = {}
    in_8_bits = set[str]()
    for file in sorted(_files(path)):
        with _opened(file) as opened:
            for name in opened.keys():  # noqa: SIM118
                part = opened.get_slice(name)
                kind = part.get_dtype()
                if found.is_fp8 and kind == fp8_blocks.DTYPE:
                    in_8_bits.add(name)
                elif kind not in _FLOATS:
                    if not name.endswith(_COUNTERS):
                        raise ConfigError(f"{file}: {name} is {kind}: save the weights in fp32, fp16 or bf16")
                    continue
                shapes[name], file_of[name] = tuple(part.get_shape()), file
    for name in in_8_bits:
        factors, needed = shapes.pop(name + fp8_blocks.SCALE, None), fp8_blocks.scale_shape(shapes[name])
        if factors != needed or len(needed) != 2:
            raise ConfigError(
                f"{path}: {name} in fp8 has factors for its blocks of shape {factors and list(factors)}, and "
                f"{list(needed)} is needed"
            )
    if not found.is_fp8 and found.name_of is None:
        return Weights(shapes, file_of)
    name_of = found.name_of or str
    stored = {new: name for name in shapes if (new := name_of(name)) is not None}
    return Weights({new: shapes[name] for new, name in stored.items()}, file_of, stored)


def _in_floats(found: Mapping[str, Tensor], name: str) -> Tensor:
    scale = found.get(name + fp8_blocks.SCALE)
    return found[name] if scale is None else fp8_blocks.dequantised(found[name], scale)


def _files(path: Path) -> set[Path]:
    """The files of weights. Raises ConfigError for none, or for those that would execute code."""
    files = {path / _WEIGHTS}
    if not (path / _WEIGHTS).is_file():
        if not (path / _INDEX).is_file():
            pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
            raise ConfigError(
                f"{path} has its weights in {pickles[0]}, a pickle, which is a program: save them as safetensors first"
                if pickles
                else f"{path} has no {_WEIGHTS}: give a directory that save_pretrained wrote"
            )
        names = read_json(path / _INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise ConfigError(f"{path / _INDEX} has no weight_map")
        for name in names.values():
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise ConfigError(f"{path / _INDEX} names {name!r}, which is no safetensors file of this folder")
        files = {path / name for name in names.values()}
    return files


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Raises ConfigError for a file that cannot be read."""
    try:
        with safe_open(file, "pt") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} cannot be read ({line_of(error)}): copy it again") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _JSON_BYTES:
            raise ConfigError(f"{path} is larger than {_JSON_BYTES} bytes")
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read ({line_of(error)})") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} is no JSON object")
    return tree


def line_of(error: Exception) -> str:
    """The beginning of an error's message, on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
