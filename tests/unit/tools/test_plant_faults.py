"""Faults that the tool plants, the tests that are near a file, and what it prints of faults that no test notices."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.plant_faults.faults import faults
from tools.plant_faults.nearest import ImportGraph

SOURCE = '''"""1 + 1."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    LIMIT = 1
def f(x: int = 3, *, é: bool = False) -> float:
    """2 + 2."""
    if x < 2 and not é:
        raise ValueError(f"{x + 1}")
    g(x, é)
    é_sum = torch.sum(x.float(), dtype=torch.float32)
    return float(é_sum if é else -x) * (x) / 2.5
'''


def test_faults_of_each_kind_are_small_edits() -> None:
    lines = SOURCE.splitlines()
    found = {
        (fault.kind, fault.line, fault.planted(SOURCE).splitlines()[fault.line - 1].strip())
        for fault in faults(SOURCE)
        if len(fault.planted(SOURCE).splitlines()) == len(lines)
    }
    assert found == {
        ("constant moved by one", 5, "def f(x: int = 4, *, é: bool = False) -> float:"),
        ("constant moved by one", 5, "def f(x: int = 2, *, é: bool = False) -> float:"),
        ("constant turned", 5, "def f(x: int = 3, *, é: bool = True) -> float:"),
        ("operator turned", 7, "if x < 2 or not é:"),
        ("operator turned", 7, "if x <= 2 and not é:"),
        ("condition left out", 7, "if True and not é:"),
        ("condition left out", 7, "if x < 2 and True:"),
        ("sign or not left out", 7, "if x < 2 and (é):"),
        ("constant moved by one", 7, "if x < 3 and not é:"),
        ("constant moved by one", 7, "if x < 1 and not é:"),
        ("statement left out", 9, "pass"),
        ("arguments swapped", 9, "g(é, x)"),
        ("another of its kind", 10, "é_sum = torch.mean(x.float(), dtype=torch.float32)"),
        ("method left out", 10, "é_sum = torch.sum(x, dtype=torch.float32)"),
        ("keyword left out", 10, "é_sum = torch.sum(x.float())"),
        ("operator turned", 11, "return float(é_sum if é else -x) / (x) / 2.5"),
        ("operator turned", 11, "return float(é_sum if é else -x) * (x) * 2.5"),
        ("constant moved by one", 11, "return float(é_sum if é else -x) * (x) / 3.5"),
        ("function left out", 11, "return (é_sum if é else -x) * (x) / 2.5"),
        ("condition left out", 11, "return float(é_sum if True else -x) * (x) / 2.5"),
        ("condition left out", 11, "return float(é_sum if False else -x) * (x) / 2.5"),
        ("sign or not left out", 11, "return float(é_sum if é else (x)) * (x) / 2.5"),
    }
    assert {fault.line for fault in faults(SOURCE, {7, 8, 9})} == {7, 9}
    assert {(fault.first, fault.last) for fault in faults(SOURCE, {7})} == {(7, 7)}, "the head, without its block"


def test_tests_are_near_by_their_imports(tmp_path: Path) -> None:
    files = {
        "pretrain/__init__.py": "",
        "pretrain/low.py": "",
        "pretrain/high.py": "from pretrain.low import name",
        "pretrain/other.py": "",
        "tests/helpers.py": "def help():\n    import pretrain.low",
        "tests/test_helped.py": "from tests.helpers import help",
        "tests/test_high.py": "from pretrain import high",
        "tests/test_low.py": "from pretrain.low import name",
        "tests/test_a.py": "import pretrain.low as short",
        "tests/test_other.py": "from pretrain import other",
        "tests/gpu/test_low.py": "import pretrain.low",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    near = ImportGraph(tmp_path).near("pretrain/low.py", 9)
    assert near == ["tests/test_low.py", "tests/test_a.py", "tests/test_helped.py", "tests/test_high.py"]
    assert ImportGraph(tmp_path).near("pretrain/low.py", 1) == ["tests/test_low.py"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_survives_is_printed() -> None:
    """Of a file whose every line has a test, as of one whose tests are left out."""
    tool = [sys.executable, "-m", "tools.plant_faults", "pretrain/layout/names.py", "--faults", "4", "--jobs", "1"]
    done = subprocess.run([*tool, "--near", "3"], capture_output=True, text=True, check=False)
    assert "noticed by tests/unit/" in done.stdout, done.stdout + done.stderr
    done = subprocess.run([*tool, "--near", "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.count("SURVIVES 0 tests") == 4
