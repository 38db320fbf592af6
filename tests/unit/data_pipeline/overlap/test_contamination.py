"""What a build found of evaluation sets, read back from its dataset."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.build.build import build
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.overlap.contamination import SearchedSet, searched_sets
from data_pipeline.overlap.gram_index import GramIndex, example_hashes
from data_pipeline.overlap.search import grams_held
from data_pipeline.steps.registry import recorded_repairs
from tests.helpers.datasets import Silent, build_dataset, make_documents, settings

DIRTY = 3


@pytest.fixture(scope="module")
def examples() -> list[str]:
    draw = random.Random(5)
    return [" ".join(f"x{draw.randrange(1000)}" for _ in range(15)) + "." for _ in range(10)]


@pytest.fixture(scope="module")
def folder(examples: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """quiz.jsonl, and text that holds the DIRTY one of its examples."""
    folder = tmp_path_factory.mktemp("contamination")
    lines = [json.dumps({"id": number, "text": text}) for number, text in enumerate(examples)]
    (folder / "quiz.jsonl").write_text("\n\n".join(lines) + "\n")
    documents = make_documents(0, 60)
    documents[20] = f"{documents[20]} {examples[DIRTY]} {documents[21]}"
    (folder / "dirty.txt").write_text("\n\n".join(documents))
    (folder / "clean.txt").write_text("\n\n".join(make_documents(1, 60)))
    return folder


@pytest.fixture(scope="module")
def mixed(folder: Path) -> Path:
    """Two sources, of which one is searched."""
    step = {"name": "decontaminate", "against": str(folder / "quiz.jsonl"), "only": ["dirty"]}
    sources = [{"name": name, "input": str(folder / f"{name}.txt"), "weight": 1} for name in ("dirty", "clean")]
    assert build(settings(sources=sources, output=folder / "mixed", steps=[step], workers=1), Silent)
    return folder / "mixed"


def test_examples_are_found_again_by_their_words(mixed: Path, examples: list[str]) -> None:
    (found,) = searched_sets(Dataset(mixed / "dirty"))
    assert (found.name, found.ngram, found.examples, found.short, found.dirty) == ("quiz", 13, 10, 0, 1)
    assert found.dirty_fraction == 0.1
    assert found.removed["ngram"] == 13
    asked = [text.upper().replace(" ", "\n\n ") for text in examples] + ["another question"]
    assert np.isin(example_hashes(asked), found.hashes).tolist() == [True] * 10 + [False]
    assert np.flatnonzero(np.isin(example_hashes(asked), found.dirty_hashes)).tolist() == [DIRTY]


def test_a_source_that_was_not_searched_has_no_sets(mixed: Path) -> None:
    assert Dataset(mixed / "clean").report()["steps"][0]["overlap"]["sets"], "the build's report tells of the step"
    assert searched_sets(Dataset(mixed / "clean")) == []


def test_shards_are_searched_in_one_form_and_for_examples_as_their_build_repairs_text(tmp_path: Path) -> None:
    """A set in NFD, and one that was read in a wrong encoding."""
    text = "Mọi người sinh ra đều được tự do và bình đẳng về phẩm cách và các quyền"
    dataset = build_dataset([*make_documents(0, 30), *[f"{text} {n}" for n in range(9)]], tmp_path, steps=["repair"])
    record = dataset.manifest.build
    readings = [str, recorded_repairs(record.config["steps"], record.source)]
    for example, reading in ((unicodedata.normalize("NFD", text), 0), (text.encode().decode("latin-1"), 1)):
        index = GramIndex.from_texts([("quiz", [example], 8)], 13, readings[: reading + 1])
        assert index.report(grams_held(dataset, index))[0]["dirty"] == 1


def test_a_build_without_the_step_has_no_sets(dataset: Dataset) -> None:
    assert searched_sets(dataset) == []


def test_a_report_from_before_hashes_were_kept_knows_no_example() -> None:
    facts: dict[str, Any] = {"name": "a", "ngram": 8, "examples": 2, "short": 0, "dirty": 1, "dirty_fraction": 0.5}
    old = SearchedSet.read({**facts, "dirty_examples": [1]}, {"ngram": 13})
    assert (old.dirty, len(old.hashes), len(old.dirty_hashes)) == (1, 0, 0)


def test_a_report_that_was_changed_is_an_error(tmp_path: Path) -> None:
    dataset = build_dataset(make_documents(0, 30), tmp_path)
    path = tmp_path / "set" / "report.json"
    path.write_text(path.read_text().replace("}", " }", 1))
    with pytest.raises(DataError, match=r"report\.json isn't what the manifest says"):
        dataset.report()
