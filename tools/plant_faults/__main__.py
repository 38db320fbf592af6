"""Plants faults in the product, one at a time in a copy, and prints those that no test near them notices.

    python -m tools.plant_faults                                    # in the lines that differ from main
    python -m tools.plant_faults --since v0.1.0 --minutes 30        # from another state
    python -m tools.plant_faults pretrain/models/routing.py         # in whole files, or those of a folder
    python -m tools.plant_faults launch --directory runs/faults     # call again to continue, and to retry survivors

Each fault is tried with the tests that ran its line before it was planted, the quickest first, then with tests of
ranks and commands that import the file. Exit status 0: every fault was noticed; 1: some were not, and are printed:
write a test that fails while the fault is in, or find that it changes nothing. Faults whose tests did not end in time
are counted apart: they hang, or the machine was busy.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from tools.plant_faults.faults import Fault, faults
from tools.plant_faults.kept import Kept
from tools.plant_faults.nearest import ImportGraph
from tools.plant_faults.trial import NO_END, TestRun, alone, notices, prepare, study

_PRODUCT = ("pretrain/", "data_pipeline/", "launch/")
_SLOWER = 3.0  # times the seconds of a test without a fault, beside other work
_START_S = 60.0
_STUDIED = 6  # files of tests that one process runs without a fault


@dataclass(frozen=True)
class Outcome:
    """Outcome of a fault: the test that noticed it, or None; the number of tests that were chosen for it."""

    path: str
    fault: Fault
    noticed_by: str | None
    tried: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", nargs="*", help="Files or folders of the product. Default: the lines that differ from --since."
    )
    parser.add_argument("--since", default="main", help="Git revision to compare with.")
    parser.add_argument("--faults", type=int, default=100, help="Most faults, drawn evenly from the files.")
    parser.add_argument("--minutes", type=float, default=30, help="No fault begins after this time.")
    parser.add_argument("--seconds", type=float, default=60, help="Most seconds of tests for one fault.")
    parser.add_argument("--near", type=int, default=12, help="Files of tests for each file of the product.")
    parser.add_argument("--jobs", type=int, default=2, help="Faults that are tried side by side.")
    parser.add_argument("--directory", type=Path, help="Folder for what later calls with it need not do again.")
    parser.add_argument("--seed", type=int, default=1, help="Seed by which faults are drawn.")
    options = parser.parse_args()
    began = time.monotonic()
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # with GPUs in use no process could be forked
    root = Path.cwd()
    try:
        lines = _whole_files(root, options.files) if options.files else _changed_lines(root, options.since)
    except ValueError as error:
        parser.error(str(error))
    drawn = _drawn(root, lines, options.faults, options.seed)
    if not drawn:
        print("no line in which a fault could be planted")
        return 0
    with tempfile.TemporaryDirectory(prefix="faults-") as directory:
        copies = [Path(directory) / str(number) for number in range(options.jobs)]
        for copy in copies:
            _copy(root, copy)
        prepare()
        kept = Kept(root, options.directory)
        tests = _near_tests(root, copies, sorted({path for path, _ in drawn}), options, kept)
        print(
            f"{len(drawn)} faults in {len({path for path, _ in drawn})} files, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        until = began + 60 * options.minutes
        outcomes = _try_all(drawn, tests, copies, until=until, seconds=options.seconds, kept=kept)
    _report(outcomes, len(drawn))
    return int(any(outcome.noticed_by is None for outcome in outcomes))


def _whole_files(root: Path, names: Sequence[str]) -> dict[str, set[int] | None]:
    """The files named, and those in the folders named, as paths from the root, which tests and copies know them by.
    Raises ValueError for what is no file of the product."""
    found: dict[str, set[int] | None] = {}
    for name in names:
        path = Path(os.path.abspath(root / name))
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        paths = [os.path.relpath(file, root) for file in files if file.is_file()]
        if not paths or not all(file.startswith(_PRODUCT) and file.endswith(".py") for file in paths):
            raise ValueError(f"{name}: name Python files of {', '.join(_PRODUCT)}")
        found |= dict.fromkeys(paths)
    return found


def _changed_lines(root: Path, since: str) -> dict[str, set[int] | None]:
    """Lines of the product's files that differ from a git revision, and whole files that git does not know yet. Raises
    ValueError for no revision."""
    patterns = [f"{folder}*.py" for folder in _PRODUCT]
    prefixes = ["--src-prefix=a/", "--dst-prefix=b/"]  # whatever the user's configuration says
    differ = _git(root, "diff", "-U0", "--no-color", "--no-ext-diff", *prefixes, since, "--", *patterns)
    found: dict[str, set[int] | None] = {}
    lines = set[int]()
    for line in differ.splitlines():
        if line.startswith("+++ "):
            lines = set()
            if line.startswith("+++ b/"):
                found[line.removeprefix("+++ b/")] = lines
        elif line.startswith("@@"):
            first, _, count = line.split("+")[1].split(" ")[0].partition(",")
            lines |= set(range(int(first), int(first) + int(count or 1)))
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *patterns)
    return found | dict.fromkeys(filter(None, new.split("\0")))


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout


def _drawn(root: Path, lines: dict[str, set[int] | None], most: int, seed: int) -> list[tuple[str, Fault]]:
    """Up to `most` faults, as many of each file as there are."""
    draw, by_file = random.Random(seed), []
    for path, wanted in sorted(lines.items()):
        found = faults((root / path).read_text(encoding="utf-8"), wanted)
        draw.shuffle(found)
        by_file.append([(path, fault) for fault in found])
    in_turn = [fault for turn in zip_longest(*by_file) for fault in turn if fault is not None]
    return in_turn[:most]


def _copy(root: Path, copy: Path) -> None:
    """The files of the project that git knows or would add, links as links."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (source := root / name).is_symlink() or source.is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy / name, follow_symlinks=False)


def _near_tests(
    root: Path, copies: Sequence[Path], paths: Sequence[str], options: argparse.Namespace, kept: Kept
) -> dict[str, list[TestRun]]:
    """The tests near each file, run once without a fault."""
    known = ImportGraph(root)
    near = {path: known.near(path, options.near) for path in paths}
    targets: dict[str, list[str]] = defaultdict(list)
    for path, found in near.items():
        for file in found:
            targets[file].append(path)
    by_file = {file: runs for file in targets if (runs := kept.studied(file, targets[file])) is not None}
    left, free = sorted(targets.keys() - by_file.keys()), list(copies)

    def run(files: Sequence[str]) -> None:
        copy = free.pop()
        runs = study(copy, files, paths, copy.with_name(f"{copy.name}.out"), 60 * options.minutes)
        free.append(copy)
        for file in files:
            by_file[file] = [test for test in runs if test.name.partition("::")[0] == file]
            kept.add_study(file, paths, by_file[file])

    with ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(run, [left[at : at + _STUDIED] for at in range(0, len(left), _STUDIED)]))
    return {path: [test for file in found for test in by_file[file]] for path, found in near.items()}


def _try_all(
    drawn: Sequence[tuple[str, Fault]],
    tests: dict[str, list[TestRun]],
    copies: Sequence[Path],
    *,
    until: float,
    seconds: float,
    kept: Kept,
) -> list[Outcome]:
    free = list(copies)
    sources = {path: (copies[0] / path).read_text(encoding="utf-8") for path in {path for path, _ in drawn}}

    def attempt(job: tuple[str, Fault]) -> Outcome | None:
        path, fault = job
        source = sources[path]
        before = kept.noticed_by(path, fault, source)
        if before is not None:
            return Outcome(path, fault, before, 0)
        if time.monotonic() > until:
            return None
        copy = free.pop()
        chosen = list(_within(tests[path], path, fault, seconds))
        try:
            (copy / path).write_text(fault.planted(source), encoding="utf-8")
            allowed = _START_S + _SLOWER * sum(test.seconds for test in chosen)
            by = notices(copy, chosen, copy.with_name(f"{copy.name}.out"), allowed) if chosen else None
        finally:
            (copy / path).write_text(source, encoding="utf-8")
            free.append(copy)
        outcome = Outcome(path, fault, by, len(chosen))
        with alone:
            print(_line(outcome, source), flush=True)
        if by != NO_END:  # of which a busy machine may be the reason
            kept.add_tried(path, fault, source, by)
        return outcome

    new_first = sorted(drawn, key=lambda job: kept.tried(job[0], job[1], sources[job[0]]))
    with ThreadPoolExecutor(len(copies)) as pool:
        return [outcome for outcome in pool.map(attempt, new_first) if outcome is not None]


def _within(tests: Sequence[TestRun], path: str, fault: Fault, seconds: float) -> Iterator[TestRun]:
    """The tests for a fault that `seconds` have room for: those that ran its lines, quickest first, then those that
    start processes, in which lines are not counted."""
    reach = [test for test in tests if test.reaches(path, fault.first, fault.last)]
    others = [test for test in tests if test.starts_processes and test not in reach]
    for test in (*sorted(reach, key=lambda test: test.seconds), *sorted(others, key=lambda test: test.seconds)):
        seconds -= test.seconds
        if seconds < 0:
            return
        yield test


def _line(outcome: Outcome, source: str) -> str:
    fault = outcome.fault
    old = source.encode()[fault.start : fault.end].decode()
    edit = " ".join(f"{old} -> {fault.text or 'nothing'}".split())
    told = f"noticed by {outcome.noticed_by}" if outcome.noticed_by else f"SURVIVES {outcome.tried} tests"
    return f"{outcome.path}:{fault.line}  {fault.kind}: {edit}  {told}"


def _report(outcomes: Sequence[Outcome], drawn: int) -> None:
    tried = Counter(outcome.path for outcome in outcomes)
    alive = Counter(outcome.path for outcome in outcomes if outcome.noticed_by is None)
    no_end = Counter(outcome.path for outcome in outcomes if outcome.noticed_by == NO_END)
    print(f"\n{'tried':>6}{'alive':>6}{'no end':>8}  file")
    for path in sorted(tried):
        print(f"{tried[path]:6}{alive[path]:6}{no_end[path]:8}  {path}")
    print(
        f"{tried.total():6}{alive.total():6}{no_end.total():8}  in all"
        + (f", of {drawn} drawn: time is up" if tried.total() < drawn else "")
    )


if __name__ == "__main__":
    sys.exit(main())
