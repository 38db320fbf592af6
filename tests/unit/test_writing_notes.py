"""What a run says of words and sentences of its text."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.recipes.characters import CharacterSpans
from pretrain.config.run_config import RunConfig
from pretrain.data.writing_notes import warnings_of_writing
from tests.helpers.datasets import build_dataset, make_documents

_CHARACTERS = list("的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("sets")
    chinese = ["".join(random.choice(_CHARACTERS, 200)) + "。" for _ in range(60)]
    sentences = [text.replace(" ", ". ") for text in make_documents(0, 60)]
    texts = {"zh": chinese, "en": sentences}
    return {name: build_dataset(one, folder, name, tokenizer={"type": "bytes"}) for name, one in texts.items()}


def _said(dataset: Dataset, **objective: Any) -> list[str]:
    segments = {"segments": 2, "binary_head": True} if objective.get("next_sentence") else {}
    values: dict[str, Any] = {
        "run": {"dir": "unused"},
        "train": {"steps": 3},
        "batch": {"sequences": 4},
        "model": {"family": "bert", "layers": 1, "hidden": 8, "heads": 1, "sequence_length": 64, **segments},
        "objective": {"name": "masked", **objective},
        "optimizer": {"learning_rate": 1},
        "data": {"path": str(dataset.directory)},
    }
    return list(warnings_of_writing(RunConfig.model_validate(values), [dataset]))


def test_a_share_far_from_what_was_asked_for_is_said(datasets: dict[str, Dataset]) -> None:
    (note,) = _said(datasets["zh"], whole_words=True, boundaries="ascii")
    assert "of the tokens in the first 64 rows of" in note
    assert "objective.noise_density=0.15 asks for 15.0%" in note
    assert _said(datasets["zh"], whole_words=True, boundaries="unicode") == []
    assert _said(datasets["en"], whole_words=True, boundaries="ascii") == []
    assert _said(datasets["zh"]) == []


def test_texts_without_an_end_of_a_sentence_are_counted(datasets: dict[str, Dataset]) -> None:
    (note,) = _said(datasets["zh"], next_sentence=True, boundaries="unicode")
    assert "documents of" in note
    assert "have no end of a sentence within 64 tokens, and objective.name=masked is about sentences" in note
    assert _said(datasets["en"], next_sentence=True, boundaries="unicode") == []


def test_masked_characters_are_counted_and_sentences_are_not_asked_for(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    texts = {
        "zh": ["".join(random.choice(_CHARACTERS, 200)) for _ in range(60)],
        "blank": [(" " * 19).join(random.choice(_CHARACTERS, 20)) for _ in range(60)],
    }
    for name, said in (("zh", 0), ("blank", 1)):
        dataset = build_dataset(texts[name], tmp_path, name, tokenizer={"type": "characters"})
        source = SimpleNamespace(objective=CharacterSpans(boundaries="unicode"))
        data, run = SimpleNamespace(resolved_sources=[source]), SimpleNamespace(seed=0)
        notes = warnings_of_writing(SimpleNamespace(sequence_length=64, run=run, data=data), [dataset])  # type: ignore[arg-type]
        assert [" are masked, and objective.noise_density=0.15 asks for 15.0%" in note for note in notes] == [
            True
        ] * said
