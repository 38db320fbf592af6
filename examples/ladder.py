"""`make ladder`: a scaling law on real text, tested by a run that it had not seen: up to three hours on two cores.

    python -m examples.ladder [--tiny] [--rule olmo]

Small runs are trained, a law is fitted to them, and what it says of a run with at least four times the compute of the
largest is written down (runs/ladder/law/predictions.jsonl) before that run is trained. Stopped at any point, the same
command goes on. `--tiny` does the same in minutes, to see that every part works: of such runs no law can be had.
`--rule`: of learning rates; `constant`, if left out.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from examples import enwik8
from pretrain.run_dir.records import read_events

BASE = "debug/ladder"


@dataclass(frozen=True)
class Plan:
    """What is trained."""

    folder: Path
    data: Path
    text_bytes: int
    sizes: str
    ratios: str
    seeds: str
    asked_size: str
    asked_ratio: str
    rule: str = "constant"


WHOLE = Plan(
    Path("runs/ladder"), Path("datasets/ladder"), 100_000_000, "58k,99k,133k,208k", "40,80", "3,3,2,1", "471k", "70"
)
TINY = Plan(
    Path("runs/ladder-tiny"), Path("datasets/ladder-tiny"), 6_000_000, "38k,58k,80k,99k", "5,10", "1", "208k", "10"
)


def main(plan: Plan) -> int:
    """Does what is not done yet. Returns the exit status."""
    started = time.monotonic()
    data, law = plan.data, plan.folder / "law"
    if not data.exists():
        text = data.with_suffix(".xml")
        enwik8.fetch(text, plan.text_bytes)
        settings = ["tokenizer.vocabulary=1024", "validation_fraction=0.03"]
        _run("data", "build", "data/text", f"input={text}", f"output={data}", *settings)
    _ladder(plan, "plan", data, plan.sizes, plan.ratios, plan.seeds, "runs")
    for name in ("stems.txt", "branches.txt"):  # the second take up checkpoints of the first
        _train_all(_commands(plan.folder / "plan" / name))
    _ladder(plan, "asked", data, plan.asked_size, plan.asked_ratio, "1", "asked-run")
    (asked,) = json.loads((plan.folder / "asked" / "ladder.json").read_text())["runs"]
    if not (law / "predictions.jsonl").exists():
        _run("scale", "fit", str(plan.folder / "runs"), "--out", str(law))
        _run("scale", "predict", str(law), "--parameters", str(asked["parameters"]), "--tokens", str(asked["tokens"]))
    _train_all(_commands(plan.folder / "asked" / "stems.txt"))
    _compare(plan.folder, Path(asked["run_dir"]))
    print(f"this command took {(time.monotonic() - started) / 60:.1f} minutes")
    return 0


def _ladder(plan: Plan, name: str, data: Path, sizes: str, ratios: str, seeds: str, runs: str) -> None:
    out = plan.folder / name
    planned = out / "ladder.json"
    if planned.exists():
        rule = json.loads(planned.read_text())["rule"]
        if rule != plan.rule:
            sys.exit(f"ladder: {plan.folder} was begun with --rule {rule}, not {plan.rule}: move it elsewhere")
    else:
        options = ["--sizes", sizes, "--tokens-per-parameter", ratios, "--seeds", seeds, "--rule", plan.rule]
        _run(
            "scale", "ladder", BASE, f"data.path={data}", *options, "--runs", str(plan.folder / runs), "--out", str(out)
        )


def _commands(file: Path) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in file.read_text().splitlines()] if file.exists() else []


def _train_all(commands: list[list[str]]) -> None:
    """As many at once as there are cores, one on each. A run that is finished says so and ends."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda command: _run(*command, threads=1), commands):
            pass


def _compare(folder: Path, run: Path) -> None:
    """Prints the measured loss beside what was said, and keeps both in proof.json."""
    said = json.loads((folder / "law" / "predictions.jsonl").read_text().splitlines()[0])
    loss = [event for event in read_events(run) if event["event"] == "heldout"][-1]["loss"]
    main = said["by_form"][said["law"]]["value"]
    proof = {
        "predicted": main, "low": said["low"], "high": said["high"], "said": said["time"], "reasons": said["reasons"],
        "measured": loss, "error": main / loss - 1,
    }  # fmt: skip
    (folder / "proof.json").write_text(f"{json.dumps(proof, indent=1)}\n")
    within = f"{said['low']:.4f} to {said['high']:.4f}"
    print(f"\npredicted {main:.4f} ({within}), measured {loss:.4f}: {100 * proof['error']:+.2f}%")
    for reason in said["reasons"]:
        print(f"no single number had been given: {reason}")


def _run(*arguments: str, threads: int | None = None) -> None:
    print(f"$ pretrain {shlex.join(arguments)}", flush=True)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    log = subprocess.DEVNULL if threads else None  # of many runs at once: each has metrics.jsonl
    status = subprocess.run([sys.executable, "-m", "pretrain", *arguments], env=environment, stdout=log).returncode
    if status != 0:
        sys.exit(
            f"ladder: the command above ended with status {status}; the same command goes on: python -m examples.ladder"
        )


def _plan() -> Plan:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="minutes in place of hours")
    parser.add_argument("--rule", default=Plan.rule, help="as `pretrain scale ladder --rule`")
    options = parser.parse_args()
    plan = TINY if options.tiny else WHOLE
    if options.rule == plan.rule:
        return plan
    return replace(plan, rule=options.rule, folder=plan.folder.with_name(f"{plan.folder.name}-{options.rule}"))


if __name__ == "__main__":
    sys.exit(main(_plan()))
