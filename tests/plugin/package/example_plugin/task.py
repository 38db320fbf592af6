"""Spells words: made by a rule, so that it needs no files."""

import random

from pretrain.evaluate.tasks.base import Loaded, Sources, Task, TaskDocument


def _load(sources: Sources) -> Loaded:
    draw = random.Random(sources.seed)
    words = ["".join(draw.choices("abcdefgh", k=4)) for _ in range(20)]
    return Loaded([TaskDocument(f"\n\n{word} is spelled", f" {'-'.join(word)}") for word in words])


SPELLING = Task(name="spelling", load=_load, synthetic=True, title="Spelling", source="made by a rule")
