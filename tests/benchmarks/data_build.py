"""A whole build of real text beside datatrove with the same steps, each on one core: see `data.py`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.reading.readers import read_documents
from data_pipeline.tokenizers.load import train_tokenizer
from tests.benchmarks.data_rounds import show, take_turns

ROOT = Path(__file__).parents[2]
_VOCABULARY, _TRAINING_TEXTS = 8192, 500


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Both read the same .jsonl, and tokenize with the same tokenizer.json, in new processes of which all is timed."""
    text, tokenizer = _input(options.text, options.documents, folder)
    megabytes = text.stat().st_size / 1e6
    languages: list[Any] = [{"name": "language", "keep": ["en"]}] if options.lid else []
    steps: list[Any] = ["gopher_quality", "gopher_repetition", *languages, "dedup_fuzzy"]
    config = {"input": str(text), "steps": steps, "tokenizer": {"path": str(tokenizer)}, "workers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    contestants = {"ours": partial(_ours, folder)}
    if options.datatrove:
        contestants["datatrove"] = partial(_datatrove, options, text, tokenizer, folder)
    else:
        print("datatrove is left out: give --datatrove (see --help)")
    print(f"{options.documents:,} documents, {megabytes:.1f} MB; steps {steps}, GPT-2's kind of tokenizer")
    seconds = take_turns(contestants, options.rounds, warm_up=False)
    made = Dataset(folder / "ours")
    print(f"tokens: ours {sum(split.tokens for split in made.manifest.splits.values()):,}")
    show({name: [megabytes / s for s in of] for name, of in seconds.items()}, "MB/s", ["ours"])
    print("\ngoal for ours / datatrove: 5")


def main() -> None:
    """One build, in a process of its own."""
    config = json.loads(Path(sys.argv[1]).read_text())
    build(BuildConfig(output=Path(sys.argv[2]), **config))


def _input(source: Path, documents: int, folder: Path) -> tuple[Path, Path]:
    texts = []
    for document in read_documents(source, BuildConfig(input=str(source), output=folder / "none")):
        texts.append(document.text)
        if len(texts) == documents:
            break
    path = folder / "input" / "text.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps({"text": text, "id": str(n)}) + "\n" for n, text in enumerate(texts)))
    trained = train_tokenizer(texts[:_TRAINING_TEXTS], "byte_bpe", _VOCABULARY)
    tokenizer = folder / "tokenizer" / trained.file_name
    tokenizer.parent.mkdir()
    trained.save(tokenizer)
    return path, tokenizer


def _ours(folder: Path) -> float:
    shutil.rmtree(folder / "ours", ignore_errors=True)
    command = [sys.executable, "-m", "tests.benchmarks.data_build", str(folder / "config.json"), str(folder / "ours")]
    return _timed(command)


def _datatrove(options: argparse.Namespace, text: Path, tokenizer: Path, folder: Path) -> float:
    shutil.rmtree(folder / "theirs", ignore_errors=True)
    script = ROOT / "tests" / "benchmarks" / "data_datatrove.py"
    lid = [str(options.lid)] if options.lid else []
    return _timed([str(options.datatrove), str(script), str(text), str(tokenizer), str(folder / "theirs"), *lid])


def _timed(command: list[str]) -> float:
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended:\n{done.stderr[-2000:]}")
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
