"""One training run under a real Slurm, and random faults until it is through: then it must be the run that had none.

    python -m tests.cluster.chaos --directory runs/chaos --faults 200 [--slice 40] [--steps N] [--seed 0]

Two ranks on two nodes of three. `--slice` faults are made in this call, and the run is cancelled then; the next call on
the same directory resumes. Once `--faults` are made in all, the run trains to its end. Its losses, gradient norms and
`data_hash` of every step must be those of a run of the same config that nothing happened to. Prints a table: faults by
kind, and the time that each has cost, from the fault until the run has started again and is beyond the step that it had
reached.
"""

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from launch.run_progress import events, progress
from pretrain.run_dir.records import read_metrics
from tests.end_to_end.conftest import write_config
from tests.helpers import command
from tests.helpers.launched import Launched, assert_same, fail_node, kill, pretrain
from tests.helpers.prose import prose
from tests.helpers.slurm import Slurm

_RESOURCES = ["--nodes", "2", "--ranks-per-node", "1", "--cpus-per-rank", "2", "--partition", "low", "--restarts", "50"]
_STEPS_A_FAULT = 60
_GAP = (3, 80)
"""steps, until the next fault"""
_EARLY, _EARLY_S = 0.25, 10.0
"""share of faults that come before the run has got over the last one, and how soon after it"""
_PATIENCE_S = 900.0


_NO_START = "the supervisor is stopped (SIGSTOP)"
"""a fault that does not end the ranks"""
_OPEN = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED")


@dataclass(frozen=True)
class Fault:
    """One that was made."""

    kind: str
    step: int
    """the most that the run had reached"""
    lost_s: float
    """until it had started again and was beyond that, or until the next fault"""
    early: bool
    """it came before the run had got over the one before it"""


class Chaos:
    """Makes faults in the run that `launched` is."""

    def __init__(self, launched: Launched, draw: random.Random) -> None:
        self._launched, self._cluster, self._draw = launched, launched.cluster, draw
        self._kinds: dict[str, tuple[float, Callable[[], bool]]] = {
            "a rank is killed": (5, lambda: self._kill_one(launched.ranks())),
            "a rank is stopped (SIGSTOP), a hang": (2, lambda: self._kill_one(launched.ranks(), signal.SIGSTOP)),
            "the supervisor is killed": (3, lambda: self._kill_one(launched.supervisors()[1])),
            _NO_START: (1, self._stop_the_supervisor),
            "srun is killed": (2, lambda: any([kill(pid) for pid in launched.srun()])),
            "scontrol requeue": (2, self._requeue),
            "scancel --signal=USR1, to the ranks": (2, self._signal),
            "scancel --batch --signal=USR1, as before a time limit": (1, lambda: self._signal("--batch")),
            "preempted by a higher partition": (1, self._preempt),
            "a node fails": (1, self._fail_a_node),
        }

    def make(self) -> str:
        """One fault, of a kind that is possible now. Its name."""
        names, weights = list(self._kinds), [weight for weight, _ in self._kinds.values()]
        while True:
            (name,) = self._draw.choices(names, weights)
            if self._kinds[name][1]():
                return name
            self.tend()
            time.sleep(0.2)

    def tend(self) -> None:
        """What an operator does: nodes that are well come back, and a job that is queued again need not wait."""
        for node in self._cluster.nodes:
            if not self._cluster.has_daemon(node) and self._cluster.node_state(node).startswith("DOWN"):
                self._cluster.start_node(node)
        state = self._cluster.state(self._launched.job)
        assert state in _OPEN, self._launched.said()
        if state == "PENDING":
            with suppress(AssertionError):  # it has started by now
                self._launched.release()

    def reach(self, steps: int) -> None:
        """Until the run has made so many."""
        self._until(lambda: self.step >= steps, _PATIENCE_S)

    def get_over(self, kind: str, since: datetime, within_s: float = _PATIENCE_S) -> bool:
        """Until the run has started again since a fault, and is beyond what it had reached before: whether it was, in
        this time. Raises AssertionError where it never is."""
        top, started = self.step, kind == _NO_START

        def over() -> bool:
            nonlocal top, started
            started = started or any(event["event"] == "planned" for event in events(self._launched.run, since))
            if not started:
                top = max(top, self.step)
            return started and self.step > top

        return self._until(over, within_s)

    @property
    def step(self) -> int:
        return progress(self._launched.run).step

    def _until(self, reached: Callable[[], bool], within_s: float) -> bool:
        began = tended = time.monotonic()
        while not reached():
            now = time.monotonic()
            if now - began > within_s:
                assert within_s < _PATIENCE_S, self._launched.said()
                return False
            if now - tended > 1.0:
                self.tend()
                tended = now
            time.sleep(0.2)
        return True

    def _kill_one(self, pids: list[int], number: int = signal.SIGKILL) -> bool:
        return bool(pids) and kill(self._draw.choice(sorted(pids)), number)

    def _stop_the_supervisor(self) -> bool:
        return self._kill_one(self._launched.supervisors()[1], signal.SIGSTOP)

    def _runs(self) -> bool:
        return self._cluster.state(self._launched.job) == "RUNNING"

    def _requeue(self) -> bool:
        return self._runs() and self._asked(lambda: self._cluster.scontrol("requeue", str(self._launched.job)))

    def _signal(self, *options: str) -> bool:
        there = bool(self._launched.supervisors()[1] if options else self._launched.ranks())
        return there and self._asked(lambda: self._cluster.send(self._launched.job, "USR1", *options))

    def _preempt(self) -> bool:
        if not self._runs():
            return False
        script = "#!/bin/bash\nsleep 1"
        self._cluster.submit(script, "--partition=high", f"--nodes={len(self._cluster.nodes)}", "--exclusive")
        return True

    def _fail_a_node(self) -> bool:
        if not self._runs() or any(not self._cluster.has_daemon(node) for node in self._cluster.nodes):
            return False
        fail_node(self._cluster, self._draw.choice(self._launched.nodes()))
        return True

    @staticmethod
    def _asked(ask: Callable[[], object]) -> bool:
        try:
            ask()
        except AssertionError:  # it has ended by now
            return False
        return True


def some_faults(chaos: Chaos, count: int, draw: random.Random, record: Callable[[Fault], None]) -> None:
    """`count` of them, each recorded once the run is over it, or the next one has come."""
    chaos.reach(chaos.step + draw.randint(*_GAP))
    early = False
    for left in reversed(range(count)):
        step, since, kind = chaos.step, datetime.now(UTC), chaos.make()
        hurries = left > 0 and draw.random() < _EARLY
        over = chaos.get_over(kind, since, *([draw.uniform(0, _EARLY_S)] if hurries else []))
        lost_s = (datetime.now(UTC) - since).total_seconds()
        record(Fault(kind, step, round(lost_s, 1), early))
        early = not over
        if over and left:
            chaos.reach(chaos.step + draw.randint(*_GAP))


def table(faults: list[Fault]) -> str:
    """Table of seconds lost, by kind of fault."""
    lines = ["| Fault | Times | Seconds lost: median | most | in all |", "|---|---|---|---|---|"]
    for kind in sorted({fault.kind for fault in faults}):
        lost = [fault.lost_s for fault in faults if fault.kind == kind]
        lines.append(f"| {kind} | {len(lost)} | {median(lost):.0f} | {max(lost):.0f} | {sum(lost):,.0f} |")
    every = [fault.lost_s for fault in faults]
    lines.append(f"| **all** | {len(every)} | {median(every):.0f} | {max(every):.0f} | {sum(every):,.0f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--directory", type=Path, required=True, help="Directory of all files; give the same one to resume."
    )
    parser.add_argument("--faults", type=int, required=True, help="in all")
    parser.add_argument("--slice", type=int, help="at most so many in this call (default: all)")
    parser.add_argument("--steps", type=int, help=f"of the run (default: {_STEPS_A_FAULT} for each fault)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    directory, record = options.directory.absolute(), options.directory.absolute() / "faults.jsonl"
    config, settings = _prepared(directory, options.steps or options.faults * _STEPS_A_FAULT)
    faults = [Fault(**json.loads(line)) for line in record.read_text().splitlines()] if record.exists() else []
    count = min(options.faults - len(faults), options.slice or options.faults)
    draw, run = random.Random(f"{options.seed}/{len(faults)}"), directory / "run"

    def keep(fault: Fault) -> None:
        faults.append(fault)
        with record.open("a") as file:
            file.write(f"{json.dumps(asdict(fault))}\n")
        print(f"{len(faults)}/{options.faults} at step {fault.step}: {fault.kind}, {fault.lost_s} s", flush=True)

    with Slurm(nodes=3) as cluster:
        launched = Launched(cluster, run, str(config), *settings, *_RESOURCES)
        chaos = Chaos(launched, draw)
        if count:
            some_faults(chaos, count, draw, keep)
        if len(faults) < options.faults:
            pretrain(cluster, "launch", "cancel", run)
            cluster.wait(launched.job, "FAILED", "CANCELLED", timeout_s=300)
            print(
                f"{table(faults)}\n{len(faults)} of {options.faults} faults made; run the same command again to resume"
            )
            return 0
        while cluster.state(launched.job) != "COMPLETED":
            chaos.tend()
            time.sleep(1.0)
    assert_same(run, read_metrics(_whole(directory, config, settings)))
    print(
        f"{table(faults)}\nall {progress(run).step} steps have losses, gradient norms and data of a run without faults"
    )
    return 0


def _prepared(directory: Path, steps: int) -> tuple[Path, list[str]]:
    """The config, its dataset and its settings."""
    directory.mkdir(parents=True, exist_ok=True)
    text, data = directory / "reference.txt", directory / "dataset"
    if not data.exists():
        text.write_text("\n\n".join(prose()), encoding="utf-8")
        settings = [f"input={text}", f"output={data}", "tokenizer.vocabulary=500", "validation_fraction=0.1"]
        done = command.run("data", "build", "configs/data/text.yaml", *settings)
        assert done.returncode == 0, done.stderr
    settings = [
        f"train.steps={steps}", "checkpoint.every_steps=20", "evaluate.every_steps=0",
        "parallel.tensor=2", "health.hang_s=10",
    ]  # fmt: skip
    return write_config(data, directory), settings


def _whole(directory: Path, config: Path, settings: list[str]) -> Path:
    """The run that nothing happens to."""
    run = directory / "whole"
    done = command.run("train", config, *settings, f"run.dir={run}", "--nproc", "2", timeout_s=7200)
    assert done.returncode == 0, done.stderr
    return run


if __name__ == "__main__":
    sys.exit(main())
