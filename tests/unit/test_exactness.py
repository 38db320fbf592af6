"""docs/exactness.md claims what tests show: every line names tests, and they exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "exactness.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def _tests(path: Path) -> set[str]:
    return {
        node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
    }


def test_every_line_of_the_tables_names_a_test() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("|---", "| What"))]
    tables = [line for line in lines if line.count("|") == 6]
    assert len(tables) >= 10
    assert [line for line in tables if not NAMED.search(line)] == []


def test_every_test_named_exists() -> None:
    named = set(NAMED.findall(PAGE))
    missing = [f"{path}::{name}" for path, name in named if name not in _tests(ROOT / path)]
    assert missing == []
