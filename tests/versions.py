"""The golden curves and a cut of the tests on several Pythons and versions of the engines: `make test-versions`.

    python -m tests.versions --directory runs/versions [--lane NAME] [--environment LANE=FOLDER] [--table]

Each lane has an environment of its own below the directory, and each of its parts a result in `results.json` there. A
second call continues with the parts that have not passed. A lane without an interpreter is named and skipped. `--table`
only writes the results into docs/versions.md.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "versions.md"
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
ENGINES = ("torch", "megatron-core", "deepspeed", "transformers")
NEWEST = (*ENGINES, "peft", "lm-eval")
"""what the lane of the newest versions takes"""
PARTS = {
    "golden curves": ["tests/multirank/test_golden.py"],
    "cut": [
        "tests/unit/rehearse",
        "tests/unit/engine",
        "tests/unit/models",
        "tests/unit/attention",
        "tests/unit/commands/test_lean_imports.py",
        "tests/multirank/test_zero_memory.py",
        "tests/end_to_end/test_bad_batches.py",
        "tests/end_to_end/test_best_checkpoint.py",
    ],
    "make test": ["tests"],
}
USUAL = ("golden curves", "cut")
"""parts that are run unless others are named; `make test` has both in it"""
_BEGIN, _END = "<!-- results: make test-versions -->\n", "<!-- end of results -->\n"
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")


@dataclass(frozen=True)
class Lane:
    name: str
    python: str
    """X.Y"""
    instead: tuple[str, ...] = ()
    """what pip takes without regard to pyproject.toml, in its newest version or that named; all else is as in
    .ci/constraints.txt"""


LANES = (
    Lane("3.11 pinned", "3.11"),
    Lane("3.11 torch 2.11", "3.11", ("torch==2.11.0",)),
    Lane("3.12 pinned", "3.12"),
    Lane("3.12 torch 2.14", "3.12", ("torch==2.14.1", "megatron-core==0.18.2")),
    Lane("3.13 pinned", "3.13"),
    Lane("3.13 newest", "3.13", NEWEST),
)


def main() -> None:
    names = [lane.name for lane in LANES]
    parser = argparse.ArgumentParser(description="Run the golden curves and a cut of the tests on several versions.")
    parser.add_argument("--directory", type=Path, default=Path("runs/versions"), help="environments and results")
    parser.add_argument("--lane", action="append", choices=names, help="only this lane; may be repeated (default: all)")
    parser.add_argument(
        "--part",
        action="append",
        choices=list(PARTS),
        help="only this part; may be repeated (default: golden curves and cut)",
    )
    parser.add_argument(
        "--environment",
        action="append",
        default=[],
        metavar="LANE=FOLDER",
        help="an environment that is installed already, instead of one below the directory",
    )
    parser.add_argument("--workers", type=int, default=0, help="processes that share the tests (default: one)")
    parser.add_argument("--table", action="store_true", help="only write the results into docs/versions.md")
    options = parser.parse_args()
    given = dict(one.split("=", 1) for one in options.environment)
    if unknown := given.keys() - set(names):
        parser.error(f"--environment names no lane: {', '.join(unknown)}; lanes are {', '.join(names)}")
    options.directory.mkdir(parents=True, exist_ok=True)
    file = options.directory / "results.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    lanes = [] if options.table else [lane for lane in LANES if lane.name in (options.lane or names)]
    for lane in lanes:
        folder = Path(given.get(lane.name, options.directory / lane.name.replace(" ", "-")))
        python = folder / "bin" / "python" if lane.name in given else _install(lane, folder)
        if python is None:
            print(f"{lane.name}: skipped, as there is no python{lane.python} on the PATH", flush=True)
            continue
        facts = results.setdefault(lane.name, {"parts": {}})
        facts["versions"] = versions(python)
        for part in options.part or USUAL:
            if part not in facts["parts"] or bad(facts["parts"][part]):
                print(f"{lane.name}: {part}", flush=True)
                facts["parts"][part] = _run(python, PARTS[part], options.workers)
                partial = file.with_suffix(".partial")
                partial.write_text(json.dumps(results, indent=1) + "\n")
                partial.replace(file)
    write_table(PAGE, results)
    failed = [f"{name}: {part}" for name, lane in results.items() for part, one in lane["parts"].items() if bad(one)]
    if failed:
        raise SystemExit(f"failed: {'; '.join(failed)}")


def _install(lane: Lane, folder: Path) -> Path | None:
    """The interpreter of the lane's environment, which is installed unless it was; None without such a Python."""
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return python
    base = shutil.which(f"python{lane.python}")
    if base is None or subprocess.run([base, "-c", ""], capture_output=True, check=False).returncode:
        return None  # a version manager's command may be there without the Python
    print(f"{lane.name}: installing into {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([base, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraint = ["--constraint", CONSTRAINTS]
    # torch first and alone, as in the Makefile.
    subprocess.run([*pip, *constraint, "torch"], check=True)
    subprocess.run([*pip, *constraint, "--editable", f"{ROOT}[dev]"], check=True)
    if lane.instead:
        subprocess.run([*pip, "--upgrade", *lane.instead], check=True)  # pip only warns of pyproject.toml's ranges
    done.touch()
    return python


def versions(python: Path) -> dict[str, str]:
    code = f"import platform, json; from importlib.metadata import version; print(json.dumps({{'python': \
platform.python_version(), **{{name: version(name) for name in {ENGINES!r}}}}}))"
    found: dict[str, str] = json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True).stdout)
    return found


def _run(python: Path, tests: list[str], workers: int) -> dict[str, Any]:
    """Counts by outcome, and what failed."""
    command = [python, "-m", "pytest", *tests, "-m", "not slow and not gpu and not cluster", "-n", str(workers), "-rfE"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        sys.stdout.write(line)
        lines.append(line)
    return {"date": datetime.now(UTC).date().isoformat(), **outcome(lines, process.wait())}


def outcome(lines: list[str], status: int) -> dict[str, Any]:
    """Counts and failures, read from pytest's output and exit status."""
    counts = {name: int(count) for count, name in _COUNT.findall(lines[-1] if lines else "")}
    failed = [line.split()[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return {"status": status, **counts, "failures": failed}


def bad(part: dict[str, Any]) -> bool:
    return bool(part["status"])


def write_table(page: Path, results: dict[str, Any]) -> None:
    """Replaces the table between the page's marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    page.write_text(f"{before}{_BEGIN}{table(results)}{_END}{after}", encoding="utf-8")


def table(results: dict[str, Any]) -> str:
    """A row for each lane that has a result."""
    rows = [["Lane", "Python", *ENGINES, *PARTS, "Date"]]
    for lane in LANES:
        facts = results.get(lane.name)
        if facts is None or not facts["parts"]:
            continue
        parts = [_cell(facts["parts"].get(part)) for part in PARTS]
        dates = sorted({part["date"] for part in facts["parts"].values()})
        rows.append([lane.name, *(facts["versions"][name] for name in ("python", *ENGINES)), *parts, dates[-1]])
    rows.insert(1, ["---"] * len(rows[0]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(part: dict[str, Any] | None) -> str:
    if part is None:
        return "not run"
    counts = [f"{part[name]} {name}" for name in ("passed", "failed", "error", "skipped") if part.get(name)]
    return ", ".join(counts) or f"ended with {part['status']}"


if __name__ == "__main__":
    main()
