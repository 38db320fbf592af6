"""What a build holds for one long document: so much for each of its bytes, whatever the steps."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest

_BYTES_PER_BYTE = 16
"""docs/data.md says so"""
_STEPS = (
    "[repair, c4, {name: language, keep: [en]}, personal, boilerplate, gopher_repetition, "
    "{name: gopher_quality, max_words: 100000000}, {name: dedup_exact, by: paragraph}, dedup_fuzzy]"
)
_PEAK = """\
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def _peak_bytes(folder: Path, characters: int) -> int:
    """Of any process of a build of many short documents and one of so many characters."""
    draw = random.Random(0)
    words = sorted({word for text in topics.values() for word in text.split() if word.isascii() and word.isalpha()})
    lines = (" ".join(draw.choices(words, k=12)) + ".\n" * draw.choice((1, 1, 2)) for _ in range(characters // 60))
    folder.mkdir()
    texts = [*topics.values(), "".join(lines)[:characters]]
    (folder / "long.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    build = ["-m", "pretrain", "data", "build", "configs/data/text.yaml", f"input={folder}/long.jsonl"]
    settings = [f"output={folder}/out", "tokenizer.vocabulary=500", "workers=1", f"steps={_STEPS}"]
    asked = [sys.executable, "-c", _PEAK, sys.executable, *build, *settings]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    shards = [shard for split in manifest["splits"].values() for shard in split["shards"]]
    assert sum(shard["bytes"] for shard in shards) > characters / 3, "no step has dropped it"
    return int(done.stdout) * 1024


@pytest.mark.slow
def test_a_long_document_takes_so_many_bytes_for_each_of_its_own(tmp_path: Path) -> None:
    short, long = 2**20, 13 * 2**20
    grown = _peak_bytes(tmp_path / "long", long) - _peak_bytes(tmp_path / "short", short)
    print(f"{grown / (long - short):.1f} bytes")
    assert grown < _BYTES_PER_BYTE * (long - short)
