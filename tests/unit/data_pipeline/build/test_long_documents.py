"""What a build holds for one long document: so much for each of its bytes, whatever the steps."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.prose import prose

_BYTES_PER_BYTE = 16
"""docs/data.md says so"""
_STEPS = (  # of a build each
    "[repair, c4, {name: language, keep: [en]}, personal, boilerplate, gopher_repetition, "
    "{name: gopher_quality, max_words: 100000000}, {name: dedup_exact, by: paragraph}, dedup_fuzzy]",
    # With so small an alpha a draw is beyond any score, so that documents are judged and stay.
    "[{name: quality, good: FOLDER/good.jsonl, raw: FOLDER/raw.jsonl, alpha: 0.001}, "
    "{name: decontaminate, against: FOLDER/examples.jsonl}]",
)
_PEAK = """\
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def _peak_bytes(folder: Path, characters: int, steps: str) -> int:
    """Peak memory of any process of a build of many short documents and one of `characters` characters."""
    draw = random.Random(0)
    words = sorted({word for text in prose() for word in text.split() if word.isascii() and word.isalpha()})
    lines = (" ".join(draw.choices(words, k=12)) + ".\n" * draw.choice((1, 1, 2)) for _ in range(characters // 60))
    long, short = "".join(lines)[:characters], list(prose())
    folder.mkdir()
    _write(folder / "long.jsonl", [*short, long])
    _write(folder / "good.jsonl", short[::2])
    _write(folder / "raw.jsonl", short[1::2])
    _write(folder / "examples.jsonl", [long[at : at + 200] for at in (100_000, 400_000)])
    build = ["-m", "pretrain", "data", "build", "configs/data/text.yaml", f"input={folder}/long.jsonl"]
    asked_steps = f"steps={steps.replace('FOLDER', str(folder))}"
    settings = [f"output={folder}/out", "tokenizer.vocabulary=500", "workers=1", asked_steps]
    asked = [sys.executable, "-c", _PEAK, sys.executable, *build, *settings]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    shards = [shard for split in manifest["splits"].values() for shard in split["shards"]]
    assert sum(shard["bytes"] for shard in shards) > characters / 3, "no step has dropped it"
    report = json.loads((folder / "out" / "report.json").read_text())
    last = report["steps"][-1]
    assert last["name"] != "decontaminate" or last["kept"] >= len(short) + 3, "the examples were found in it"
    return int(done.stdout) * 1024


def _write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.mark.slow
@pytest.mark.parametrize("steps", _STEPS, ids=("local-and-dedup", "quality-and-decontaminate"))
def test_a_long_document_takes_so_many_bytes_for_each_of_its_own(tmp_path: Path, steps: str) -> None:
    short, long = 2**20, 13 * 2**20
    grown = _peak_bytes(tmp_path / "long", long, steps) - _peak_bytes(tmp_path / "short", short, steps)
    print(f"{grown / (long - short):.1f} bytes")
    assert grown < _BYTES_PER_BYTE * (long - short)
