"""Faults that the tool plants, the tests that are near a file, and what it prints of faults that no test notices."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.plant_faults.__main__ import Outcome, _changed_lines, _report, _whole_files
from tools.plant_faults.faults import faults
from tools.plant_faults.kept import Kept
from tools.plant_faults.nearest import ImportGraph
from tools.plant_faults.trial import TestRun

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


def test_arguments_whose_order_changes_nothing_are_not_swapped() -> None:
    kinds = [{fault.kind for fault in faults(f"x = {name}(a, b)")} for name in ("min", "torch.maximum", "g")]
    assert kinds == [{"another of its kind"}, {"another of its kind"}, {"arguments swapped"}]


def test_what_only_guards_is_left_as_it_is() -> None:
    assert not [fault for fault in faults("assert a\nb = zip(c, c, strict=True)") if fault.kind != "arguments swapped"]


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


def test_tests_that_name_a_declared_family_are_near_its_files(tmp_path: Path) -> None:
    files = {
        "pretrain/classics/old/__init__.py": 'DECLARES = {"pretrain.families": {"old_one": "family:CAPABILITIES"}}',
        "pretrain/classics/old/family.py": "CAPABILITIES = 1",
        "pretrain/classics/other/__init__.py": 'DECLARES = {"pretrain.families": {"other": "family:CAPABILITIES"}}',
        "pretrain/classics/other/family.py": "CAPABILITIES = 1",
        "pretrain/named.py": 'FAMILY = "old_one"',
        "tests/helper.py": 'CONFIG = "debug/old_one"',
        "tests/test_config.py": "from tests import helper",
        "tests/test_family.py": 'def test() -> None:\n    assert "old_one"',
        "tests/test_other.py": "from pretrain import named",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    graph = ImportGraph(tmp_path)
    assert graph.near("pretrain/classics/old/family.py", 9) == ["tests/test_family.py", "tests/test_config.py"]
    assert graph.near("pretrain/classics/other/family.py", 9) == []


def project(root: Path) -> None:
    """A repository with a commit, a line that differs from it, and a file that is new."""
    (root / "launch" / "deep").mkdir(parents=True)
    (root / "launch" / "old.py").write_text("a = 1\nb = 2\n")
    for words in (
        ["init", "-q"],
        ["config", "diff.mnemonicPrefix", "true"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", *words], cwd=root, check=True)
    (root / "launch" / "old.py").write_text("a = 1\nb = 3\n")
    (root / "launch" / "deep" / "new.py").write_text("c = 1\n")
    (root / "launch" / "note.txt").write_text("")


def test_lines_that_differ_and_new_files_are_found_whatever_git_is_told_by_its_user(tmp_path: Path) -> None:
    project(tmp_path)
    assert _changed_lines(tmp_path, "HEAD") == {"launch/old.py": {2}, "launch/deep/new.py": None}
    with pytest.raises(ValueError, match="nowhere"):
        _changed_lines(tmp_path, "nowhere")


def test_files_are_known_by_their_paths_from_the_root_however_they_are_named(tmp_path: Path) -> None:
    """An absolute one would be no file of a copy: the fault would be planted in the file itself."""
    (tmp_path / "launch" / "deep").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    for name in ("launch/old.py", "launch/deep/new.py", "launch/note.txt", "tests/test_old.py"):
        (tmp_path / name).write_text("")
    for name in ("launch/old.py", "./launch/old.py", "launch/deep/../old.py", str(tmp_path / "launch/old.py")):
        assert _whole_files(tmp_path, [name]) == {"launch/old.py": None}
    assert _whole_files(tmp_path, ["launch"]) == {"launch/old.py": None, "launch/deep/new.py": None}
    for name in ("launch/none.py", "tests/test_old.py", "tests", "launch/note.txt", "/none.py", "../x.py"):
        with pytest.raises(ValueError, match=r"name Python files of pretrain/, data_pipeline/, launch/"):
            _whole_files(tmp_path, [name])


def test_faults_whose_tests_did_not_end_are_counted_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """On a busy machine they say nothing about tests."""
    fault = faults("a = 1")[0]
    outcomes = [Outcome("a.py", fault, by, 1) for by in ("tests/test_a.py::test", "no end in time", None, None)]
    _report(outcomes, 9)
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["tried", "alive", "no", "end", "file"],
        ["4", "2", "1", "a.py"],
        ["4", "2", "1", "in", "all,", "of", "9", "drawn:", "time", "is", "up"],
    ]


def test_what_an_earlier_call_found_counts_as_long_as_the_texts_are_the_same(tmp_path: Path) -> None:
    root, directory = tmp_path / "project", tmp_path / "kept" / "faults"
    root.mkdir()
    for name in ("a.py", "b.py", "test_a.py"):
        (root / name).write_text("x = 1")
    source = "y = 2\nx = 1 + 1\n"
    first, second = faults(source, {2})[:2]
    runs = [TestRun("test_a.py::test", 0.5, False, {"a.py": [1]})]
    Kept(root, directory).add_study("test_a.py", ["a.py"], runs)
    Kept(root, directory).add_tried("a.py", first, source, "test_a.py::test")
    Kept(root, directory).add_tried("a.py", second, source, None)
    kept = Kept(root, directory)
    assert kept.studied("test_a.py", ["a.py"]) == runs
    assert kept.studied("test_a.py", ["a.py", "b.py"]) is None, "lines of b.py were not looked at"
    later = "z = 3\n" + source
    moved = next(fault for fault in faults(later, {3}) if (fault.kind, fault.text) == (first.kind, first.text))
    assert kept.noticed_by("a.py", moved, later) == "test_a.py::test", "wherever the line now is"
    assert (kept.tried("a.py", second, source), kept.noticed_by("a.py", second, source)) == (True, None)
    assert not kept.tried("b.py", first, source)
    assert not kept.tried("a.py", first, source.replace("1 + 1", "1 + 2")), "another line"
    (root / "a.py").write_text("x = 2")
    assert Kept(root, directory).studied("test_a.py", ["a.py"]) is None
    assert Kept(root, None).studied("test_a.py", []) is None


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_survives_is_printed() -> None:
    """The same file is tried twice: with the tests near it, and with none."""
    tool = [sys.executable, "-m", "tools.plant_faults", "pretrain/layout/names.py", "--faults", "4", "--jobs", "1"]
    done = subprocess.run([*tool, "--near", "3"], capture_output=True, text=True, check=False)
    assert "noticed by tests/unit/" in done.stdout, done.stdout + done.stderr
    done = subprocess.run([*tool, "--near", "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.count("SURVIVES 0 tests") == 4
