"""The global random generators, which each test, fixture and rank finds as if they were new, and calls that would draw
what nobody can draw again.

torch starts its generator from the system's entropy, and so do numpy and Python's `random`. tests/conftest.py seeds the
three before each test and each fixture, and tests/helpers/ranks.py in each rank, so that no number depends on what ran
before. A generator of a test's own takes its seed when it is made: `unseeded` finds those that don't.
"""

import ast
import random
from collections.abc import Iterator

import numpy as np
import torch

SEED = 1234

_NEED_A_SEED = {
    *(f"numpy.random.{name}" for name in ("default_rng", "RandomState", "SeedSequence", "seed")),
    *(f"numpy.random.{name}" for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")),
    *("random.Random", "random.seed"),
}
_NEVER = {"torch.seed", "torch.random.seed", "torch.default_generator.seed", "random.SystemRandom"}


def seed_global_generators() -> None:
    """Seed the global generators of torch (on every device), numpy and Python."""
    if torch.cuda.is_available():
        torch.manual_seed(SEED)
    else:  # without GPUs it would keep, at each call, the stack for the day that there are some
        torch.default_generator.manual_seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002  # what a library may draw from
    random.seed(SEED)


def unseeded(source: str) -> list[str]:
    """Each call in `source` that makes or seeds a generator without a seed, or draws from Python's global one:
    "line 3: random.Random() has no seed"."""
    nodes = list(ast.walk(ast.parse(source)))
    names = dict(_imported(nodes))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    seeded = {id(call.func.value) for call in calls if _is_manual_seed(call)}  # type: ignore[attr-defined]
    found = []
    for call in calls:
        name = _resolved(call.func, names)
        if (
            (name in _NEED_A_SEED and not (call.args or call.keywords))
            or name in _NEVER
            or (name == "torch.Generator" and id(call) not in seeded)
        ):
            found.append(f"line {call.lineno}: {ast.unparse(call)} has no seed")
        elif name.startswith("random.") and name not in _NEED_A_SEED:
            found.append(
                f"line {call.lineno}: {ast.unparse(call)} draws from all tests' generator: make a random.Random"
            )
    return found


def _is_manual_seed(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "manual_seed" and bool(call.args)


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """(name in the file, what it stands for)."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _resolved(function: ast.expr, names: dict[str, str]) -> str:
    """Dotted, from the module that it is imported from; empty if it is not imported."""
    attributes: list[str] = []
    while isinstance(function, ast.Attribute):
        attributes.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name) or function.id not in names:
        return ""
    return ".".join([names[function.id], *reversed(attributes)])
