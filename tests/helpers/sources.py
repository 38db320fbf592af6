"""Python sources, parsed: each text once in a process, however many tests look at it."""

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = [name for name in ("pretrain", "data_pipeline", "launch", "examples", "tools") if (ROOT / name).is_dir()]

Nodes = tuple[ast.AST, ...]


@cache
def nodes(source: str) -> Nodes:
    """The module and all its nodes, in the order of `ast.walk`. Not to be changed: the next caller gets the same."""
    collects = gc.isenabled()
    gc.disable()  # it would look through each of a million new nodes again and again, and none is garbage
    try:
        return tuple(ast.walk(ast.parse(source)))
    finally:
        if collects:
            gc.enable()


def parsed(*folders: str) -> Iterator[tuple[str, Nodes]]:
    """Each file below folders of the repository, by default its packages: path from the root, nodes."""
    for folder in folders or PACKAGES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), nodes(path.read_text(encoding="utf-8"))
