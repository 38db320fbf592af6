"""Calls of 28 verbs with slips of every kind, drawn from a seed: each ends in time, by the contract's statuses, with
one clear sentence where it is refused, and nonsense that was planted is refused or warned of."""

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.end_to_end.conftest import write_config
from tests.end_to_end.test_finetune import CONFIG as TONE
from tests.end_to_end.test_finetune import write_rows
from tests.helpers import command
from tests.helpers.mutated import MutatedCall, Outcome, mutated_calls, outcome, table
from tests.helpers.prose import prose

_WITHIN_S = 240  # beside others on a slow machine; most take a second
_AT_ONCE = 2
_LAW = "parameters,tokens,loss\n1e6,2e7,4.9\n2e6,4e7,4.6\n4e6,8e7,4.3\n8e6,16e7,4.1\n16e6,32e7,3.9\n32e6,64e7,3.7\n"


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """Paths that words of calls stand for: a dataset and a run of their own, small and on one rank."""
    rows, same, twice = write_rows(tmp_path / "rows", 24, 5), tmp_path / "same", tmp_path / "twice"
    for folder in (same, twice):
        folder.mkdir()
        for split in ("train", "validation"):
            row = {"text": "the film was", "choices": ["good", "good"], "label": 1}
            lines = f"{json.dumps(row)}\n" * 8 if folder == twice else (rows / "train.jsonl").read_text()
            (folder / f"{split}.jsonl").write_text(lines)
    (tmp_path / "small.txt").write_text("\n\n".join(prose())[:150_000])
    build = tmp_path / "build.yaml"
    build.write_text(
        f"extends: data/text\ninput: {tmp_path / 'small.txt'}\noutput: {tmp_path / 'built'}\n"
        "tokenizer: {vocabulary: 400}\nvalidation_fraction: 0.1\ntxt_documents: paragraph\n"
    )
    dataset, run, other = tmp_path / "built", tmp_path / "run", tmp_path / "other"
    config = write_config(dataset, tmp_path)
    config.write_text(
        config.read_text().replace(", attention: {pattern: [dense, banded], window: 8}", "")
    )  # to export it
    for arguments in (("data", "build", build), ("train", config, "train.steps=10")):
        made = command.run(*arguments, timeout_s=1200)
        assert made.returncode == 0, made.stderr
    shutil.copytree(run, other)
    (tmp_path / "text.txt").write_text("the film was good\na story\n")
    (tmp_path / "losses.csv").write_text(_LAW)
    (tmp_path / "tone.yaml").write_text(
        TONE.replace("ROWS", str(rows)).replace("RUN", str(tmp_path / "tone")).replace("epochs: 1.5", "steps: 3")
    )
    return {
        "CONFIG": config, "RUN": run, "OTHER": other, "TONE": tmp_path / "tone.yaml",
        "TEXT": tmp_path / "text.txt", "DATASET": dataset, "ROWS": rows, "SAME": same, "TWICE": twice, "BUILD": build,
        "LOSSES": tmp_path / "losses.csv", "NOTHING": tmp_path / "nothing",
    }  # fmt: skip


@pytest.fixture
def found(
    places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[MutatedCall]], list[Outcome]]:
    """The outcomes of calls, several at once."""
    folder = tmp_path / "calls"
    folder.mkdir()
    monkeypatch.chdir(folder)  # where a path that is a word leads

    def run(numbered: tuple[int, MutatedCall]) -> Outcome:
        number, call = numbered
        ended = outcome(call, places, folder / f"new-{number}", _WITHIN_S)
        if log := os.environ.get("PRETRAIN_MUTATED_CALLS"):
            with Path(log).open("a") as file:
                file.write(f"{json.dumps([number, call.verb, call.words, ended.kind, ended.problem, ended.said])}\n")
        return ended

    def run_all(calls: list[MutatedCall]) -> list[Outcome]:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return list(threads.map(run, enumerate(calls)))

    return run_all


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_mutated_calls_end_as_calls_do(
    found: Callable[[list[MutatedCall]], list[Outcome]], record_property: Callable[[str, object], None]
) -> None:
    calls = list(mutated_calls(seed=1, count=int(os.environ.get("COUNT", "640"))))
    outcomes = found(calls)
    record_property("summary", table((call.verb, one.kind) for call, one in zip(calls, outcomes, strict=True)))
    problems = [
        f"call {number}, {[word[:80] for word in call.words]}: {one.problem}"
        for number, (call, one) in enumerate(zip(calls, outcomes, strict=True))
        if one.problem is not None
    ]
    assert problems == [], "\n\n".join(problems)
