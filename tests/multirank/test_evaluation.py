"""An evaluation asks and decides the same on every layout, and sums of log probabilities agree to 1e-5."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data_pipeline.tokenizers.byte import ByteTokenizer
from pretrain.evaluate.decoding.base import Decoding
from pretrain.evaluate.evaluator import evaluate
from pretrain.evaluate.outcomes import FILE, Outcomes
from pretrain.evaluate.scorers.base import AnswerTokens, Pair
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.settings import EvalSettings
from tests.helpers.hf import randomise
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, tiny_config

LENGTH, DOCUMENTS, SHOTS = 112, 6, (0, 2)
TOLERANCE = 1e-5
CHOICES = """
task: foods
task_alias: Foods
dataset_path: json
dataset_kwargs: {data_files: {test: foods.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{ animal }} eats"
doc_to_choice: "{{ [one, other, third] }}"
doc_to_target: number
metric_list: [{metric: acc}]
"""

Prompts = list[tuple[list[int], list[int]]]
Lines = list[dict[str, Any]]


class Asked(CausalScorer):
    """Remembers what it was asked: (context ids, target ids), or a context alone, before which nothing is said."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.prompts: Prompts = []

    def score(self, pairs: Sequence[Pair], owners: Sequence[int] | None = None) -> NDArray[np.float64]:
        self.prompts += [(list(context), list(target)) for context, target in pairs]
        return super().score(pairs, owners)

    def texts(
        self, contexts: Sequence[Sequence[int]], longest: int, how: Decoding, stops: Sequence[str]
    ) -> list[AnswerTokens]:
        self.prompts += [(list(context), []) for context in contexts]
        return super().texts(contexts, longest, how, stops)


def _evaluated(folder: Path, out: Path, parallel: dict[str, Any]) -> tuple[int, Prompts]:
    """(data rank, what it asked); the reporting rank writes `documents.jsonl`."""
    wide = tiny_config().model.model_dump() | {"vocabulary": ByteTokenizer.vocabulary_size, "sequence_length": LENGTH}
    engine = build_engine(tiny_config(model=wide, parallel=parallel), train=False)
    randomise(engine)
    scorer = Asked(engine, ByteTokenizer(), LENGTH)
    settings = EvalSettings(shots=SHOTS, limit=DOCUMENTS)
    choices = EvalSettings(shots=SHOTS, limit=DOCUMENTS, data_dir=folder)
    for number, (name, how) in enumerate((("arithmetic_1dc", settings), (str(folder / "foods.yaml"), choices))):
        outcomes = Outcomes(out / str(number) / FILE) if engine.is_reporter else None
        evaluate(engine, scorer, None, [name], how, outcomes=outcomes)
    return engine.data_rank, scorer.prompts


def _run(world: int, folder: Path, out: Path, parallel: dict[str, Any]) -> tuple[Prompts, Lines]:
    """What all data ranks asked, in one order, and what was told."""
    by_data_rank = dict(run_ranks(world, _evaluated, folder, out, parallel))
    files = sorted(out.rglob(FILE))
    told = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted(prompt for prompts in by_data_rank.values() for prompt in prompts), told


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("foods")
    (found / "foods.yaml").write_text(CHOICES)
    foods = ["grass", "old bones", "fish", "seeds", "small mice", "leaves", "hay"]
    animals = ["A cow", "A dog", "The cat", "One wren", "An owl", "The goat", "A horse"]
    lines = [
        {"animal": animal, "one": foods[n], "other": foods[n - 1], "third": foods[n - 3], "number": n % 3}
        for n, animal in enumerate(animals)
    ]
    (found / "foods.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return found


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Prompts, Lines]:
    return _run(1, folder, tmp_path_factory.mktemp("alone"), {})


@pytest.mark.parametrize(("world", "parallel"), [(2, {}), (4, {"tensor": 2, "pipeline": 2})], ids=str)
def test_every_layout_asks_and_decides_what_one_rank_does(
    world: int, parallel: dict[str, Any], folder: Path, tmp_path: Path, alone: tuple[Prompts, Lines]
) -> None:
    prompts, told = _run(world, folder, tmp_path, parallel)
    assert prompts == alone[0]
    assert len(told) == 2 * len(SHOTS) * DOCUMENTS
    assert [_decided(line) for line in told] == [_decided(line) for line in alone[1]]
    for found, expected in zip(told, alone[1], strict=True):
        np.testing.assert_allclose(_sums(found), _sums(expected), rtol=0, atol=TOLERANCE)


def test_decisions_differ_between_documents(alone: tuple[Prompts, Lines]) -> None:
    """Else the test above would find wrong ones equal."""
    chosen = [line["outcomes"]["choice"]["chosen"]["sum"] for line in alone[1] if "choice" in line["outcomes"]]
    answers = [line["outcomes"]["text"]["answer"] for line in alone[1] if "text" in line["outcomes"]]
    assert len(set(chosen)) > 1 < len(set(answers))


def _sums(line: dict[str, Any]) -> list[float]:
    """Log probabilities of targets and of choices."""
    of_target, of_choices = (line["outcomes"].get(name, {}) for name in ("target", "choice"))
    return [*of_choices.get("log_probabilities", []), *([of_target["log_probability"]] if of_target else [])]


def _decided(line: dict[str, Any]) -> dict[str, Any]:
    """All but those: the document, the examples it was shown, what was chosen, said, and right."""
    kept = {
        measure: {name: value for name, value in outcome.items() if not name.startswith("log_probabilit")}
        for measure, outcome in line["outcomes"].items()
    }
    return line | {"outcomes": kept}
