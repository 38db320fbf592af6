"""Multiple choice as lm-eval judges it: the same model, the same prompts, the same choice of every document."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from pretrain.evaluate.tasks.registry import FILES, task_named
from tests.helpers.breadth import slow
from tests.unit.evaluate.fakes import FakeEngine
from tests.unit.evaluate.lm_eval_choices import PARTIAL, check_agreement, ours
from tests.unit.evaluate.task_lines import LINES

CHOICES = [name for name in sorted(FILES) if task_named(name).output_types == ("multiple_choice",)]
VARIED = re.compile(
    r"\b(tea|stove|water|fills|eats|rang|bell|home|waited|shirt|hang|ice|sand|heat|sound|plant|ink|light|loose|table|"
    r"small|glass|broke|sang|frozen|rained|slept|porch|outside|bank|lends|won|sails|dog|bees|honey|cats|keeps|flour|"
    r"sky|bag|sings?|met|left|Bo|Al|Tom)\b"
)
DOCUMENTS = 6


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def write_made_up_files(folder: Path) -> None:
    """Files of all choice tasks: the example lines, with other words of the same lengths in them."""
    for name in CHOICES:
        draw = random.Random(name)
        for file in task_named(name).fetch:
            made = [_varied(line, draw) for _ in range(DOCUMENTS + 2) for line in LINES[name][0]]
            (folder / file.file).write_text("".join(made))


def _varied(line: dict[str, Any], draw: random.Random) -> str:
    words: dict[str, str] = {}

    def other(found: re.Match[str]) -> str:
        letters = "".join(draw.choices("abcdefghijklmnopqrstuvwxyzäé", k=len(found[0])))
        return words.setdefault(found[0], letters.capitalize() if found[0][0].isupper() else letters)

    changed = json.loads(VARIED.sub(other, json.dumps(line)))
    if type(changed.get("label")) is int and "choices" not in changed and "pronoun" not in changed:
        changed["label"] = draw.randrange(2)
    return json.dumps(changed) + "\n"


@pytest.mark.parametrize("documents", [1, slow(DOCUMENTS)])
def test_every_choice_is_lm_evals(documents: int, engine: FakeEngine, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_made_up_files(data)
    assert len(CHOICES) == 34
    compared = check_agreement(engine, data, dict.fromkeys(CHOICES, (0, 2)), tmp_path, documents)
    assert compared == 2 * documents * (3 * (len(CHOICES) - len(PARTIAL)) + len(PARTIAL))


@pytest.mark.slow
def test_decisions_are_not_all_the_same_by_all_ways(engine: FakeEngine, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_made_up_files(data)
    chosen = [
        outcome["chosen"] for name in CHOICES for outcome in ours(engine, data, name, 0, tmp_path, DOCUMENTS).outcomes
    ]
    for one, other in (("sum", "per_token"), ("sum", "per_character"), ("per_character", "per_byte")):
        assert any(each[one] != each[other] for each in chosen), (one, other)
