"""`pretrain finetune`, killed and stopped in the middle of epochs and resumed on the same ranks or others, is the run
that nothing disturbed: the same samples, losses, figures and answers.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pretrain.run_dir.paths import RunDir
from pretrain.run_dir.records import read_events, read_metrics
from tests.end_to_end.test_finetune import write_rows
from tests.helpers import command
from tests.helpers.breadth import slow

CONFIG = """
run: {name: stops, dir: RUN, seed: 5}
train: {epochs: 2}  # of 8 steps
batch: {sequences: 8, micro_sequences: 2}
model: {dropout: 0.1}
objective: OBJECTIVE
data: {path: ROWS}
optimizer: {learning_rate: 3e-3}
schedule: {name: linear, warmup_steps: 2}
evaluate: {every_steps: 5EVALUATED}
checkpoint: {every_steps: 4, in_flight: 0}
track: {mlflow: false}
"""
CLASSES = "{name: classification, labels: [bad, good], sequence_length: 24}"
CASES: dict[str, tuple[str, list[str]]] = {  # objective, arguments
    "classes": (CLASSES, []),
    "head": (CLASSES, ["finetune.train=head"]),
    "lora": (CLASSES, ["finetune.lora={rank: 2, alpha: 4}"]),
    "instructions": ("{name: instructions, packing: best_fit}", []),
    "instructions lora": ("{name: instructions, packing: rows}", ["finetune.lora={rank: 2, alpha: 4}"]),
}
LAYOUTS = {
    "one rank": [],
    "tensor 2": ["parallel.tensor=2", "--nproc", "2"],
    "pipeline 2": ["parallel.pipeline=2", "--nproc", "2"],
    "data 2, zero 1": ["parallel.zero=1", "--nproc", "2"],
    "tensor 2 x pipeline 2": ["parallel.tensor=2", "parallel.pipeline=2", "--nproc", "4"],
}
KILLED, STOPPED = 6, 11  # the middle of the first epoch and of the second, and after an evaluation


def _signalled(at: int, number: signal.Signals) -> None:
    """Has the command receive a signal at a step: SIGKILL kills its last rank, any other goes to the command."""
    from pretrain.training import loop

    agree = loop._agree

    def agree_with_signal(session: Any, saver: Any, step: int) -> Any:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if step == at and number is signal.SIGKILL and rank == world - 1:
            os.kill(os.getpid(), number)
        if step == at and number is not signal.SIGKILL and rank == 0:
            os.kill(os.getppid() if world > 1 else os.getpid(), number)
            deadline = time.monotonic() + 30
            while not session.stop.requested and time.monotonic() < deadline:
                time.sleep(0.01)
        return agree(session, saver, step)

    loop._agree = agree_with_signal


@pytest.fixture(scope="module")
def straight(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of a case on one rank that nothing disturbs. Its config is beside it."""
    directories: dict[str, Path] = {}

    def run(case: str) -> Path:
        if case not in directories:
            directories[case] = tmp_path_factory.mktemp("straight")
            _write_case(directories[case], case)
            done = command.run("finetune", uninterrupted, directories[case] / "config.yaml", *CASES[case][1])
            assert done.returncode == 0, done.stderr
        return directories[case] / "run"

    return run


def _write_case(directory: Path, case: str) -> None:
    objective = CASES[case][0]
    rows = write_rows(directory / "rows", train=128 if "best_fit" in objective else 64)  # two in a packed row
    if "instructions" in objective:
        for path in rows.iterdir():
            of_split = [json.loads(line) for line in path.open()]
            turns = [{"prompt": row["text"], "response": f" {row['label']}"} for row in of_split]
            path.write_text("".join(f"{json.dumps(row)}\n" for row in turns))
    writes = ", new_tokens: 4" if "instructions" in objective else ""
    config = (
        CONFIG.replace("EVALUATED", writes)
        .replace("OBJECTIVE", objective)
        .replace("ROWS", str(rows))
        .replace("RUN", str(directory / "run"))
    )
    (directory / "config.yaml").write_text(config)


def _answers(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RunDir(run).finetune_report / "predictions-validation.jsonl").open()]


def _figures(run: Path) -> dict[str, float]:
    """What was recorded of each evaluation; of one that was repeated after a kill, the last record."""
    events = [event for event in read_events(run) if event["event"] in ("heldout", "figures")]
    figures = {
        f"{name} at {event['step']}": value for event in events for name, value in event.get("figures", {}).items()
    }
    return figures | {f"loss at {event['step']}": event["loss"] for event in events if "loss" in event}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "layouts"),
    [
        ("classes", ("pipeline 2", "tensor 2", "data 2, zero 1")),
        *(
            slow(pair)
            for pair in (
                ("classes", ("one rank", "one rank", "one rank")),
                ("classes", ("one rank", "tensor 2", "data 2, zero 1")),
                ("instructions", ("data 2, zero 1", "one rank", "tensor 2")),
                ("lora", ("tensor 2", "data 2, zero 1", "one rank")),
                ("classes", ("pipeline 2", "tensor 2 x pipeline 2", "one rank")),
                ("head", ("one rank", "one rank", "one rank")),
                ("head", ("tensor 2", "one rank", "data 2, zero 1")),
                ("lora", ("one rank", "one rank", "one rank")),
                ("lora", ("pipeline 2", "tensor 2 x pipeline 2", "data 2, zero 1")),
                ("instructions", ("one rank", "one rank", "one rank")),
                ("instructions", ("tensor 2 x pipeline 2", "data 2, zero 1", "pipeline 2")),
                ("instructions lora", ("one rank", "one rank", "one rank")),
                ("instructions lora", ("data 2, zero 1", "pipeline 2", "tensor 2")),
            )
        ),
    ],
)
def test_a_run_killed_and_stopped_in_the_middle_of_epochs_is_the_same_run(
    case: str, layouts: tuple[str, str, str], straight: Callable[[str], Path], uninterrupted: Path, tmp_path: Path
) -> None:
    """Killed with SIGKILL on the first layout, stopped with SIGTERM on the second, finished on the third."""
    expected = straight(case)
    arguments = ["finetune", uninterrupted, expected.parent / "config.yaml", *CASES[case][1], f"run.dir={tmp_path}/run"]
    signals = (partial(_signalled, KILLED, signal.SIGKILL), partial(_signalled, STOPPED, signal.SIGTERM), None)
    ends = []
    for layout, first in zip(layouts, signals, strict=True):
        started = command.Command(*arguments, *LAYOUTS[layout], first=first)
        ends.append(started.wait(120))
        assert first is None or not (tmp_path / "run/reports").exists(), "only a finished run is reported"
    assert ends == [-signal.SIGKILL if layouts[0] == "one rank" else 1, 75, 0], started.printed
    run = tmp_path / "run"
    resumed = [event["step"] for event in read_events(run) if event["event"] == "resumed"]
    assert resumed == [4, STOPPED], "from the newest checkpoint, and from where the signal stopped it"
    found, wanted = read_metrics(run), read_metrics(expected)
    assert [line["step"] for line in found] == list(range(1, wanted[-1]["step"] + 1))
    for key in ("data_hash", "samples", "tokens", "learning_rate"):
        assert [line[key] for line in found] == [line[key] for line in wanted], key
    answers, expected_answers = _answers(run), _answers(expected)
    if set(layouts) == {"one rank"}:
        for key in ("loss", "grad_norm"):
            assert [line[key] for line in found] == [line[key] for line in wanted], key
        assert answers == expected_answers
        assert _figures(run) == _figures(expected)
        return
    for key in ("loss", "grad_norm"):
        assert [line[key] for line in found] == pytest.approx([line[key] for line in wanted], rel=1e-4), key
    assert [answer["predicted"] for answer in answers] == [answer["predicted"] for answer in expected_answers]
    assert _figures(run) == pytest.approx(_figures(expected), rel=1e-4)
