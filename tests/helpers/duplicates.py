"""What deduplication has to come to, by comparing all with all; and cuts of documents into chunks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.reading.documents import Document
from data_pipeline.steps.decisions import load_decisions
from data_pipeline.steps.dedup import DedupStep
from tests.helpers.steps import run_global


@dataclass(frozen=True)
class Item:
    text: str
    source: str = ""
    held_out: bool = False


def expected(step: DedupStep, items: Sequence[Item], alike: Callable[[int, int], bool]) -> list[str]:
    """Why each item goes; "" if it stays."""

    def rank(number: int) -> tuple[bool, int, int]:
        source = items[number].source
        preferred = step.prefer.index(source) if source in step.prefer else len(step.prefer)
        return not items[number].held_out, preferred, number

    def compared(a: int, b: int) -> bool:
        return step.compare == "all" or items[a].source == items[b].source

    everyone = range(len(items))
    reasons = ["duplicate"] * len(items)
    seen: set[int] = set()
    for keeper in sorted(everyone, key=rank):
        if keeper in seen:
            continue
        cluster, edge = {keeper}, [keeper]
        while edge:
            one = edge.pop()
            found = [other for other in everyone if other not in cluster and compared(one, other) and alike(one, other)]
            cluster |= set(found)
            edge += found
        seen |= cluster
        reasons[keeper] = _reason(step, items, keeper, cluster, alike) if step.compare == "within" else ""
    return reasons


def _reason(
    step: DedupStep, items: Sequence[Item], keeper: int, cluster: set[int], alike: Callable[[int, int], bool]
) -> str:
    def near(others: list[int]) -> bool:
        return any(alike(one, other) for one in cluster for other in others)

    mine = items[keeper]
    strangers = [number for number, item in enumerate(items) if item.source != mine.source and item.held_out]
    if not mine.held_out and near(strangers):
        return "duplicate of held-out"
    for pair in step.remove:
        liked = [n for n, item in enumerate(items) if item.source == pair.like and item.held_out >= mine.held_out]
        if mine.source == pair.from_ and near(liked):
            return f"duplicate of {pair.like}"
    return ""


def outcome(step: DedupStep, items: Sequence[Item], folder: Path, chance: random.Random, workers: int = 1) -> list[str]:
    """Why each item goes, by the step, on chunks cut by chance: items of a chunk are of one kind."""
    chunks: list[list[Document]] = []
    kinds: list[tuple[str, bool]] = []
    for number, item in enumerate(items):
        kind = (item.source, item.held_out)
        if not kinds or kinds[-1] != kind or chance.random() < 0.2:
            chunks.append([])
            kinds.append(kind)
        chunks[-1].append(Document((item.text,), "a.jsonl", number))
    sources, held_out = [source for source, _ in kinds], [held for _, held in kinds]
    kept, stats = run_global(step, chunks, folder, sources, workers, held_out)
    reasons = []
    for number, chunk in enumerate(kept):
        codes, names = load_decisions(folder, number)
        reasons += [names[code] for code in codes]
        assert [document.index for document in chunk] == [
            document.index for document, code in zip(chunks[number], codes, strict=True) if not code
        ]
    assert stats.dropped == Counter(reason for reason in reasons if reason)
    return reasons
