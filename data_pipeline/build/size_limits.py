"""Limits of a build's size, checked as early as they are known rather than at its end."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from data_pipeline.build.config import BuildConfig
from data_pipeline.build.inputs import InputSource
from data_pipeline.build.shards import SplitPlan
from data_pipeline.dataset.records import LIMIT_BYTES
from data_pipeline.dataset.shard_writer import token_dtype
from data_pipeline.errors import DataError

MOST_SHARDS, MOST_MEMBERS = 2**20, 2**27  # per dataset, whose shard table then has 11 GB
_RECORD_BYTES = 140  # of an input file in a manifest, besides its name
_KEPT = "what is done is kept, and only shards are written again"


def check_inputs(sources: list[InputSource]) -> None:
    """Raises DataError for more input files than a manifest can list."""
    for source in sources:
        size = sum(len(file.name) + _RECORD_BYTES for file in source.inputs)
        if size > LIMIT_BYTES:
            raise DataError(
                f"The input has {len(source.inputs):,} files{_of(source.name)}, and a manifest can name about "
                f"{LIMIT_BYTES * len(source.inputs) // size:,}; put them into fewer and larger ones (.jsonl.zst)."
            )


def check_output(config: BuildConfig, plans: list[SplitPlan], vocabulary: int, folder: Path) -> None:
    """Raises DataError for more shards or members than a dataset can have, and when the shards don't fit on the
    disk."""
    needed = 0
    for name in dict.fromkeys(plan.source for plan in plans):
        of_source = [plan for plan in plans if plan.source == name]
        shards = sum(plan.shards for plan in of_source)
        members = sum(plan.tokens // config.member_tokens + plan.shards for plan in of_source)
        if shards > MOST_SHARDS:
            raise DataError(
                f"The dataset{_of(name)} would have {shards:,} shards, more than {MOST_SHARDS:,}; start again with a "
                f"larger shard_tokens: {_KEPT}."
            )
        if members > MOST_MEMBERS:
            raise DataError(
                f"The dataset{_of(name)} would have {members:,} members of shards, more than {MOST_MEMBERS:,}; start "
                f"again with a larger member_tokens: {_KEPT}."
            )
        needed += sum(plan.tokens for plan in of_source) * np.dtype(token_dtype(vocabulary)).itemsize
    written = sum(path.stat().st_size for path in (folder / "output").rglob("*.tar"))
    free = shutil.disk_usage(folder).free
    if needed - written > free:
        raise DataError(
            f"The shards will take {needed:,} bytes, and the disk of {config.output} has {free:,} left; free "
            "space there and start again: what is done is kept."
        )


def _of(source: str) -> str:
    return f" of {source}" if source else ""
