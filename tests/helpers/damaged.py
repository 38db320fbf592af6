"""What can be had from a dataset, and a manifest that says something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_pipeline.common.hashing import digest_of
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import MANIFEST, SPLITS

Edit = Callable[[dict[str, Any]], None]


def contents(path: Path, verify: bool) -> str:
    """A digest of all that can be had from a dataset."""
    opened = Dataset(path)
    if verify:
        opened.verify()
        opened.tokenizer()
    counts = opened.unigram_counts().tolist()
    found: list[Any] = [opened.identity, counts, opened.manifest.model_dump(mode="json")]
    for split in SPLITS:
        found.append(opened.window(split, 0, opened.num_tokens(split)).tolist())
        found.append(opened.starts(split).tolist())
        found.append([[record, tokens.tolist()] for record, tokens in opened.documents(split)])
    return digest_of(found)


def edited(copy: Path, edit: Edit) -> None:
    """The manifest with a change, as one who means harm would write it: without the checksum."""
    values = json.loads((copy / MANIFEST).read_text())
    del values["checksum"]
    edit(values)
    (copy / MANIFEST).write_text(json.dumps(values))


def shard_of(values: dict[str, Any]) -> dict[str, Any]:
    shard: dict[str, Any] = values["splits"]["train"]["shards"][0]
    return shard
