"""Makes old_runs/VERSION: runs that were stopped on their way by the code as it is, and what they come to when they go
on, for test_old_runs.py. Once for each version that is released, before it is:

    CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 python -m tests.end_to_end.old_runs_record VERSION

Their configs name paths relative to the folder of the version, so that they go on wherever it is copied to.
"""

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.helpers import command
from tests.helpers.machine import processor

FOLDER = Path(__file__).parent / "old_runs"
CONFIGS = Path(__file__).parents[2] / "configs"
RANKS = {"gpt": 4, "t5": 2}
"""run -> ranks it was started on"""

_SMALL = (
    *("train.steps=12", "batch={sequences: 4, micro_sequences: 2}", "data.path=dataset", "track.mlflow=false"),
    *("model.hidden=16", "model.heads=2", "model.ffn=32", "model.sequence_length=32", "model.vocabulary_multiple=4"),
    *("evaluate={every_steps: 0, sequences: 8}", "checkpoint={every_steps: 0, keep: 1}"),
)
_CHANGES = {
    "gpt": ("model.layers=2", "model.attention.window=8", "schedule.warmup_tokens=512"),
    "t5": (
        *("model.layers=1", "model.encoder_layers=1", "model.target_length=10", "objective.sentinels=10"),
        *("schedule.warmup_steps=4", "parallel={tensor: 2}"),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes runs for later versions to go on with.")
    parser.add_argument("version", help="of the code as it is, such as 0.1.0")
    folder = FOLDER / parser.parse_args().version
    if folder.exists():
        parser.error(f"{folder} is there already, and is to stay as that version made it")
    record(folder)


def record(folder: Path) -> None:
    """Makes `folder`. Changes the working directory."""
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        _build_dataset()
        for name in RANKS:
            _train_and_stop(name)
        shutil.copytree(scratch, folder, ignore=shutil.ignore_patterns("lock", "text.jsonl"))
        continued = {name: _go_on(name) for name in RANKS}
    expected = {"machine": processor(), "runs": continued}
    (folder / "continued.json").write_text(json.dumps(expected, indent=1) + "\n")


def config(name: str) -> list[str]:
    """Of a run: a file, and what is changed in it."""
    return [str(CONFIGS / "debug" / f"{name}.yaml"), f"run.dir={name}", *_SMALL, *_CHANGES[name]]


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of the run's metrics.jsonl."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def heldout_loss(run: str, out: Path) -> float:
    """As `pretrain eval` has it of the run's newest checkpoint."""
    _run("eval", run, "--tasks", "heldout", "--out", out)
    return float(json.loads((out / "report.json").read_text())["results"]["heldout"]["0"]["loss"])


def _build_dataset() -> None:
    draw = random.Random(1234)
    words = ["".join(draw.choice("abdeiklmnoprstu") for _ in range(draw.randint(1, 6))) for _ in range(50)]
    texts = [" ".join(draw.choice(words) for _ in range(draw.randint(5, 40))) for _ in range(60)]
    Path("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = ("input=text.jsonl", "output=dataset", "tokenizer={type: bytes}", "validation_fraction=0.2")
    _run("data", "build", CONFIGS / "data" / "text.yaml", *settings)


def _train_and_stop(name: str) -> None:
    process = command.Command("train", *config(name), "--nproc", RANKS[name])
    while process.poll() is None and len(metrics(Path(name))) < 4:
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75, f"it was not stopped on its way:\n{process.printed}"


def _go_on(name: str) -> dict[str, Any]:
    heldout = heldout_loss(name, Path(f"report-{name}"))
    stopped_at = metrics(Path(name))[-1]["step"]
    _run("train", f"{name}/config.yaml", "--nproc", RANKS[name])
    lines = metrics(Path(name))[stopped_at:]
    keys = ("step", "loss", "grad_norm", "learning_rate", "tokens", "data_hash")
    return {"heldout_before": heldout} | {key: [line[key] for line in lines] for key in keys}


def _run(*arguments: object) -> None:
    done = command.run(*arguments)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    main()
