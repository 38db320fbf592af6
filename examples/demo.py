"""`make demo`: the main job from raw text to a few-shot report, by the real commands, each shown before it runs.

    python -m examples.demo [TEXT]

Two texts become shards: TEXT, by default a part of English Wikipedia (examples/enwik8.py), and lines of a synthetic
task (examples/label_texts.py). A GPT trains on 4 ranks (tensor 2 x pipeline 2) and is stopped half way by a signal; it
resumes on 2 ranks (tensor 2), is evaluated, and continues two prompts.
"""

import hashlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from data_pipeline.errors import ExitStatus
from data_pipeline.text import label_lines
from examples import enwik8, label_texts
from pretrain.run_dir.paths import RunDir
from pretrain.run_dir.records import read_events

CONFIG = "configs/debug/demo.yaml"
RUN = Path("runs/demo")
REPORT = RunDir(RUN).reports / "few-shot"
LABEL_TEXTS = Path("datasets/label-texts.jsonl")
LABEL_SHARE = 0.4  # of training samples


def main(text: str | None) -> int:
    started = time.monotonic()
    if text is None:
        _title("Text: the first 12 MB of English Wikipedia as of 2006 (enwik8)")
        text = "datasets/enwik8.xml"
        enwik8.fetch(Path(text))
        print(f"{text}: {Path(text).stat().st_size:,} bytes")
    _title("Text: synthetic lines of words and labels, for a task that is learned from the examples in a prompt")
    label_texts.write(LABEL_TEXTS)
    print(f"{LABEL_TEXTS}: {LABEL_TEXTS.stat().st_size:,} bytes, {LABEL_SHARE:.0%} of training samples, such as")
    print(json.loads(LABEL_TEXTS.open().readline())["text"][:100].rpartition("\n")[0])
    dataset = _dataset_directory(Path(text))
    if RUN.exists():
        print(f"removing {RUN}, which an earlier demo left")
        shutil.rmtree(RUN)

    _title("1. Text -> tokenizer -> shards")
    _run(
        ["data", "build", "configs/data/text.yaml", f"sources={_sources(text)}", f"output={dataset}"],
        ["tokenizer.vocabulary=2048", "validation_fraction=0.03"],
    )

    train = ["train", CONFIG, f"data.path={dataset}", f"run.dir={RUN}", "run.name=demo", "track.every_steps=20"]
    _title("2. Train on 4 ranks (tensor 2 x pipeline 2), and stop half way")
    _run_and_stop([*train, "--nproc", "4"])

    _title("3. Resume on 2 ranks (tensor 2): same samples, same losses")
    _run(train, ["parallel.pipeline=1", "--nproc", "2"])

    _title("4. Evaluate, on 2 ranks")
    tasks = "arbitrary_labels,heldout,last_word,arithmetic_2da,arithmetic_1dc"
    _run(
        ["eval", str(RUN), "--tasks", tasks, "--shots", "0,1,8", "--limit", "200", "--out", str(REPORT)],
        ["parallel.pipeline=1", "--nproc", "2"],
    )
    _title("5. Continue a text, on 2 ranks")
    drawn = ["--temperature", "0.8", "--top-p", "0.9", "--max-tokens", "60"]
    _run(
        ["generate", str(RUN), "--prompt", "The history of", "--prompt", "It was", *drawn],
        ["parallel.pipeline=1", "--nproc", "2"],
    )
    _summary(dataset, time.monotonic() - started)
    return 0


def _dataset_directory(text: Path) -> Path:
    """One directory per text and state of it, so that another TEXT or an edited one is built again."""
    if not text.exists():
        sys.exit(f"demo: there is no {text}")
    status = text.stat()
    labels = hashlib.sha256(LABEL_TEXTS.read_bytes()).hexdigest()
    key = f"{text.resolve()} {status.st_size} {status.st_mtime_ns} {labels} {LABEL_SHARE}"
    return Path("datasets") / f"demo-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def _sources(text: str) -> str:
    """The text and the lines of labels, with their shares of training samples."""
    sources = [
        {"name": "text", "input": text, "weight": 1 - LABEL_SHARE},
        {"name": "labels", "input": str(LABEL_TEXTS), "weight": LABEL_SHARE},
    ]
    return json.dumps(sources)


def _run(*parts: list[str]) -> None:
    arguments = [argument for part in parts for argument in part]
    print(f"$ pretrain {shlex.join(arguments)}", flush=True)
    status = subprocess.run([sys.executable, "-m", "pretrain", *arguments]).returncode
    if status != 0:
        sys.exit(f"demo: the command above ended with status {status}")


def _run_and_stop(arguments: list[str]) -> None:
    """Sends SIGTERM, as Slurm would, once half of the steps are done; expects the run to save and leave with 75."""
    print(f"$ pretrain {' '.join(arguments)}", flush=True)
    process = subprocess.Popen([sys.executable, "-m", "pretrain", *arguments])
    metrics, resolved = RunDir(RUN).metrics, RunDir(RUN).config
    asked = False
    while process.poll() is None:
        time.sleep(0.5)
        if not asked and metrics.exists() and resolved.exists():
            half = _steps(resolved) // 2
            asked = metrics.read_bytes().count(b"\n") >= half
            if asked:
                print(f"\n>>> kill -TERM {process.pid}    (half way)", flush=True)
                process.send_signal(signal.SIGTERM)
    if process.returncode != ExitStatus.STOPPED:
        sys.exit(f"demo: expected status {ExitStatus.STOPPED} (stopped after saving), got {process.returncode}")
    print(f"stopped after saving, exit status {ExitStatus.STOPPED}")


def _steps(resolved: Path) -> int:
    from pretrain.config.load import read

    return int(read(resolved)["train"]["steps"])


def _summary(dataset: Path, seconds: float) -> None:
    events = read_events(RUN)
    heldout = [event for event in events if event["event"] == "heldout"][-1]
    resumed = next(event for event in events if event["event"] == "resumed")
    report = json.loads((REPORT / "report.json").read_text())
    entropy = report["facts"]["unigram_entropy"]
    _title(f"Done in {seconds / 60:.1f} minutes")
    print(f"written on {resumed['written_on']}, continued at step {resumed['step']} on another layout")
    print(
        f"held-out loss {heldout['loss']:.3f} nats per token (perplexity {math.exp(heldout['loss']):.0f}); the unigram"
    )
    print(f"entropy of the same tokens is {entropy:.3f} (perplexity {math.exp(entropy):.0f})")
    scores = report["results"][label_lines.NAME]
    print(f"{label_lines.NAME} (synthetic; training text has its form, but not its questions), right answers:")
    for shots, score in scores.items():
        expected = label_lines.expected_accuracy(int(shots))
        chance = f"by chance {score['chance']:.1%}, ideal reader {expected:.1%}"
        print(f"  {shots}-shot {score['accuracy_sum']:6.1%}  ({chance})")
    print(f"dataset   {dataset}")
    print(f"metrics   {RunDir(RUN).metrics}, {RunDir(RUN).events}")
    print(f"report    {REPORT / 'report.html'}")
    print(f"mlflow    {RUN.parent / 'mlflow.db'}  (mlflow ui --backend-store-uri sqlite:///{RUN.parent / 'mlflow.db'})")


def _title(text: str) -> None:
    print(f"\n=== {text}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # 4 ranks, on the CPU also where there are fewer GPUs
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] else None))
