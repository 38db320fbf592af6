"""`make ladder`: fits a scaling law on real text and tests it on a run that it has not seen; takes up to three hours on
two cores.

    python -m examples.ladder [--tiny] [--rule olmo]

It trains small runs, fits a law to them, and stores the law's prediction for a run with at least four times the compute
of the largest (runs/ladder/law/predictions.jsonl) before it trains that run. If it is stopped, run the same command
again to resume. `--tiny` takes minutes and only shows that every step works: its runs are too small for a law. `--rule`
sets the learning rates (default `constant`).
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


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Data, sizes and learning-rate rule of the runs. The test run is the one that the law predicts."""

    folder: Path
    data: Path
    text_bytes: int
    sizes: str
    ratios: str
    seeds: str
    test_size: str
    test_ratio: str
    rule: str = "constant"


FULL = Experiment(
    folder=Path("runs/ladder"),
    data=Path("datasets/ladder"),
    text_bytes=100_000_000,
    sizes="58k,99k,133k,208k",
    ratios="40,80",
    seeds="3,3,2,1",
    test_size="471k",
    test_ratio="70",
)
TINY = Experiment(
    folder=Path("runs/ladder-tiny"),
    data=Path("datasets/ladder-tiny"),
    text_bytes=6_000_000,
    sizes="38k,58k,80k,99k",
    ratios="5,10",
    seeds="1",
    test_size="208k",
    test_ratio="10",
)


def main(experiment: Experiment) -> int:
    """Does the steps that are not done yet. Returns the exit status."""
    started = time.monotonic()
    data, law = experiment.data, experiment.folder / "law"
    if not data.exists():
        text = data.with_suffix(".xml")
        enwik8.fetch(text, experiment.text_bytes)
        settings = ["tokenizer.vocabulary=1024", "validation_fraction=0.03"]
        _run("data", "build", "data/text", f"input={text}", f"output={data}", *settings)
    _ladder(
        experiment, "plan", data, sizes=experiment.sizes, ratios=experiment.ratios, seeds=experiment.seeds, runs="runs"
    )
    for name in ("stems.txt", "branches.txt"):  # the branches start from checkpoints of the stems
        _train_all(_commands(experiment.folder / "plan" / name))
    _ladder(
        experiment, "asked", data, sizes=experiment.test_size, ratios=experiment.test_ratio, seeds="1", runs="asked-run"
    )
    (test_run,) = json.loads((experiment.folder / "asked" / "ladder.json").read_text())["runs"]
    if not (law / "predictions.jsonl").exists():
        _run("scale", "fit", str(experiment.folder / "runs"), "--out", str(law))
        parameters, tokens = str(test_run["parameters"]), str(test_run["tokens"])
        _run("scale", "predict", str(law), "--parameters", parameters, "--tokens", tokens)
    _train_all(_commands(experiment.folder / "asked" / "stems.txt"))
    _compare(experiment.folder, Path(test_run["run_dir"]))
    print(f"this command took {(time.monotonic() - started) / 60:.1f} minutes")
    return 0


def _ladder(experiment: Experiment, name: str, data: Path, *, sizes: str, ratios: str, seeds: str, runs: str) -> None:
    out = experiment.folder / name
    planned = out / "ladder.json"
    if planned.exists():
        rule = json.loads(planned.read_text())["rule"]
        if rule != experiment.rule:
            sys.exit(
                f"ladder: {experiment.folder} was started with --rule {rule}, not {experiment.rule}: move that folder "
                f"away, or use --rule {rule}"
            )
    else:
        options = ["--sizes", sizes, "--tokens-per-parameter", ratios, "--seeds", seeds, "--rule", experiment.rule]
        _run(
            "scale",
            "ladder",
            BASE,
            f"data.path={data}",
            *options,
            "--runs",
            str(experiment.folder / runs),
            "--out",
            str(out),
        )


def _commands(file: Path) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in file.read_text().splitlines()] if file.exists() else []


def _train_all(commands: list[list[str]]) -> None:
    """Runs one command per core at a time. A run that has finished prints so and ends."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda command: _run(*command, threads=1), commands):
            pass


def _compare(folder: Path, run: Path) -> None:
    """Prints the measured loss beside the prediction, and stores both in proof.json."""
    prediction = json.loads((folder / "law" / "predictions.jsonl").read_text().splitlines()[0])
    loss = [event for event in read_events(run) if event["event"] == "heldout"][-1]["loss"]
    main = prediction["by_form"][prediction["law"]]["value"]
    proof = {
        "predicted": main, "low": prediction["low"], "high": prediction["high"], "predicted_at": prediction["time"],
        "reasons": prediction["reasons"], "measured": loss, "error": main / loss - 1,
    }  # fmt: skip
    (folder / "proof.json").write_text(f"{json.dumps(proof, indent=1)}\n")
    low, high = prediction["low"], prediction["high"]
    within = "no interval" if low is None else f"{low:.4f} to {high:.4f}"
    print(f"\npredicted {main:.4f} ({within}), measured {loss:.4f}: {100 * proof['error']:+.2f}%")
    for reason in prediction["reasons"]:
        print(f"`pretrain scale predict` gave no single number: {reason}")


def _run(*arguments: str, threads: int | None = None) -> None:
    print(f"$ pretrain {shlex.join(arguments)}", flush=True)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    log = subprocess.DEVNULL if threads else None  # many runs at a time: each writes metrics.jsonl
    status = subprocess.run([sys.executable, "-m", "pretrain", *arguments], env=environment, stdout=log).returncode
    if status != 0:
        sys.exit(f"ladder: the command above failed with status {status}: fix the cause, then run it again to resume")


def _experiment() -> Experiment:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="Small runs that take minutes instead of hours.")
    parser.add_argument(
        "--rule",
        default=Experiment.rule,
        help="Rule of learning rates, one of `pretrain scale ladder --rule` (default constant).",
    )
    options = parser.parse_args()
    experiment = TINY if options.tiny else FULL
    if options.rule == experiment.rule:
        return experiment
    return replace(
        experiment, rule=options.rule, folder=experiment.folder.with_name(f"{experiment.folder.name}-{options.rule}")
    )


if __name__ == "__main__":
    sys.exit(main(_experiment()))
