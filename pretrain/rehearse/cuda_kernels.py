"""Operators that torch has no CUDA kernel for, by the table that its own code is generated from.

A tensor without data accepts every operator that has a meta kernel, also those that would fail on a GPU.
"""

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable


@cache
def without_cuda_kernel() -> frozenset[str]:
    """Names of `aten`'s operators, with the overload where there is one. The file is read line by line, as a parser of
    YAML takes seconds for it."""
    keys: dict[str, set[str]] = {}
    delegates: dict[str, str] = {}
    generated: set[str] = set()
    name, section = "", ""
    for line in _table().read_text().splitlines():
        key, _, value = line.partition("#")[0].partition(":")
        if line.startswith("- func:"):
            name, section = value.split("(")[0].strip(), ""
            keys[name] = set()
        elif line.startswith("    ") and section == "dispatch":
            keys[name] |= {one.strip() for one in key.split(",")}
        elif line.startswith("  ") and not line.startswith("    "):
            section = key.strip()
            if section == "structured_delegate":
                delegates[name] = value.strip()
            elif section == "ufunc_inner_loop":  # its kernels are generated for each device
                generated.add(name)
    found = set()
    for name in keys:
        target = delegates.get(name, name)
        on_cuda = any(key == "CUDA" or key.startswith("Composite") for key in keys[target])
        if keys[target] and not on_cuda and target not in generated:
            found.add(name)
    return frozenset(found)


def _table() -> Traversable:
    """In torchgen, wherever it is installed: an environment may use another one's torch."""
    return files("torchgen") / "packaged/ATen/native/native_functions.yaml"
