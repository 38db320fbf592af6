"""All local cleaning steps, one after the other, as a build runs them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import LocalStep
from data_pipeline.steps.boilerplate import Boilerplate
from data_pipeline.steps.c4 import C4
from data_pipeline.steps.gopher import GopherQuality, GopherRepetition
from data_pipeline.steps.language import Language
from data_pipeline.steps.personal import Personal
from data_pipeline.steps.repair import Repair
from tests.helpers.steps import documents_of

_SENTENCES = (
    "The old man sat by the river and watched the boats go past.",
    "Write to joe@example.com, or call (212) 555-0199 if that is too slow.",
    "It isnâ€™t known to  many people\u200b that the server has been at 8.8.8.8 for years.",
    "Home",
    "Log in",
    "We use cookies to make this page better for you and for others.",
    "And that, with all of its consequences, is to be seen again in the north of the country.",
    "Please enable JavaScript to see all that we have to offer.",
    "Der alte Mann saß am Fluss und sah den Booten zu, bis die Sonne untergegangen war.",
    "They have often been said to be the first of those who came over the hills.[12]",
)


def _texts() -> list[str]:
    random_ = random.Random(0)
    return ["\n".join(random_.choices(_SENTENCES, k=random_.randrange(12))) for _ in range(200)]


def _steps() -> list[LocalStep]:
    """The rules that these made-up texts would all break are loosened."""
    return [
        Repair(),
        Boilerplate(menu_lines=2, edge_lines=1),
        Language(keep=["en"]),
        C4(),
        GopherQuality(min_words=40),
        GopherRepetition(max_lines=0.5, max_line_characters=0.5, max_top_grams={2: 0.4}, max_repeated_grams={10: 0.5}),
        Personal(),
    ]


def clean(folder: Path) -> str:
    """What goes on and what was counted, as JSON."""
    documents: Iterable[Document] = documents_of(_texts())
    step_stats = []
    for step in _steps():
        step_stats.append(StepStats())
        documents = step.run(documents, step_stats[-1], folder)
    kept = [(document.index, document.text) for document in documents]
    return json.dumps([kept, [stats.to_dict() for stats in step_stats]])


def test_the_steps_work_one_after_the_other_and_keep_the_order(tmp_path: Path) -> None:
    kept, step_stats = json.loads(clean(tmp_path))
    assert 20 < len(kept) < 180
    assert [index for index, _ in kept] == sorted(index for index, _ in kept)
    assert len(kept) + sum(sum(stats["dropped"].values()) for stats in step_stats) == 200
    assert all(stats["dropped"] or stats["changed"] for stats in step_stats)
    together = "\n".join(text for _, text in kept)
    assert "It isn\u2019t known to many people that the server has been at <IP> for years." in together
    assert "Write to <EMAIL>, or call <PHONE> if that is too slow." in together
    for gone in ("Log in", "cookies", "JavaScript", "[12]", "\u200b", "@"):
        assert gone not in together


def test_the_result_does_not_depend_on_the_process(tmp_path: Path) -> None:
    code = f"import sys, pathlib; from {__name__} import clean; print(clean(pathlib.Path()))"
    other = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[4],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
    )
    assert other.stdout.strip() == clean(tmp_path), other.stderr


@pytest.mark.parametrize("step", _steps(), ids=lambda step: step.name)
def test_settings_go_through_plain_values_and_unknown_ones_are_refused(step: LocalStep) -> None:
    plain = json.loads(json.dumps(step.model_dump(mode="json")))
    assert type(step).model_validate(plain) == step
    with pytest.raises(ValueError, match="nonsense"):
        type(step).model_validate(plain | {"nonsense": 1})
