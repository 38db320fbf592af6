"""Files of tests that are near a module of the product: those that import it, and what imports it. A family in a folder
of its own is imported by no name: its parts are near what names it in a string."""

import ast
import fnmatch
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_SLOW = ("tests/gpu", "tests/cluster", "tests/benchmarks", "tests/museum")
"""folders whose tests `make test` does not run, or that run an earlier state"""
_NAMED = ("pretrain.families", "pretrain.hf_classes")
"""groups of parts whose names tests have in strings"""


class ImportGraph:
    """Graph of imports: which module of the project in `root` imports which, tests among them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        paths = [
            path
            for folder in ("pretrain", "data_pipeline", "launch", "tests")
            for path in (root / folder).rglob("*.py")
        ]
        self._modules = {_module(path.relative_to(root)): path for path in paths}
        self._imported_by: dict[str, set[str]] = defaultdict(set)
        trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self._modules.items()}
        declaring = defaultdict[str, set[str]](set)
        for name, tree in trees.items():
            for group, declared, module in _declared(tree):
                if group in _NAMED:
                    declaring[declared].add(name)
                self._imported_by[f"{name}.{module}"].add(name)
        for name in fnmatch.filter(trees, "tests.classics.*.rows"):
            self._imported_by[name].add("tests.helpers.classics")  # by the names of folders
        for name, tree in trees.items():
            of_tests = declaring if name.startswith("tests") else {}
            named = (folder for text in _strings(tree) for folder in of_tests.get(text, ()))
            for target in (*_imports(tree), *named):
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


def _imports(tree: ast.Module) -> Iterable[str]:
    """Full names that a module imports, wherever in it: the project has no relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _declared(tree: ast.Module) -> Iterable[tuple[str, str, str]]:
    """Group and name of each part that a folder declares, and the file in it where it lies (`pretrain/classics`)."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DECLARES":
            for group, entries in ast.literal_eval(node.value).items():
                yield from ((group, name, place.partition(":")[0]) for name, place in entries.items())


def _strings(tree: ast.Module) -> Iterable[str]:
    """Strings of a module, and the names after the slash in those of shipped configs (`debug/rnn`)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.rpartition("/")[2]
