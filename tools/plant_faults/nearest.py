"""Which files of tests are near a module of the product: those that import it, and what imports it."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_SLOW = ("tests/gpu", "tests/cluster", "tests/benchmarks", "tests/museum")
"""folders whose tests `make test` does not run, or that run an earlier state"""


class ImportGraph:
    """Which module of the project in `root` imports which, tests among them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        paths = [
            path
            for folder in ("pretrain", "data_pipeline", "launch", "tests")
            for path in (root / folder).rglob("*.py")
        ]
        self._modules = {_module(path.relative_to(root)): path for path in paths}
        self._imported_by: dict[str, set[str]] = defaultdict(set)
        for name, path in self._modules.items():
            for target in _imports(path):
                if (known := self._known(target)) is not None and known != name:
                    self._imported_by[known].add(name)

    def near(self, path: str, most: int) -> list[str]:
        """Up to `most` files of tests near the module at `path`, both as paths from the root: nearest first, and of
        those at one distance those first that have its name and few other modules of the product."""
        start = _module(Path(path))
        distances, edge = {start: 0}, [start]
        while edge:
            edge = sorted({above for name in edge for above in self._imported_by[name]} - distances.keys())
            depth = 1 + max(distances.values())
            distances |= dict.fromkeys(edge, depth)
        stem = Path(path).stem
        tests = [
            (depth, stem not in name.rpartition(".")[2], name)
            for name, depth in distances.items()
            if name.rpartition(".")[2].startswith("test_") and not self._path(name).startswith(_SLOW)
        ]
        return [self._path(name) for _, _, name in sorted(tests)[:most]]

    def _path(self, name: str) -> str:
        return self._modules[name].relative_to(self._root).as_posix()

    def _known(self, target: str) -> str | None:
        """The module that an imported name lies in."""
        while target and target not in self._modules:
            target = target.rpartition(".")[0]
        return target or None


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path) -> Iterable[str]:
    """Full names that a module imports, wherever in it: the project has no relative imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
