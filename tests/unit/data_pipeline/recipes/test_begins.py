"""Documents that begin with a begin of text: what each packing and recipe makes of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.cli import inspect
from data_pipeline.dataset.backward import BackwardText
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import MANIFEST, SPLITS, DatasetManifest
from data_pipeline.dataset.mask_units import find_units
from data_pipeline.errors import DataError
from data_pipeline.heldout import heldout
from data_pipeline.recipes.causal import Causal
from data_pipeline.recipes.registry import OBJECTIVES
from tests.helpers.begins import tokenizer_files
from tests.helpers.datasets import build_dataset, build_pairs, make_documents

LENGTH = 48
TEXTS = [*make_documents(0, 60), "a", "b"]  # two are of one token
PAIRS = [(f"der Satz {i} ist {'sehr ' * (i % 5)}lang.", f"sentence {i}!") for i in range(40)]
Two = tuple[Dataset, Dataset]
RECORDED = (
    "c3d40c40fcd6d5765a0c4623a1febefabc1a58b4c78680ac21eef6c4a81484df",
    "8a3b38eb0a09bf813ce615f614e210004032198095b356c2ba296c503ad812f2",
    "f80352d9086548e05aaf8487bd3ad2fd0785db8fe66555754a8aad75f910e6f9",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tokenizer_files(TEXTS, tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture(scope="module")
def texts(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Two:
    """(documents that begin with <s>, the same ones without)"""
    begun, plain = (build_dataset(TEXTS, tmp_path_factory.mktemp("texts"), tokenizer={"path": path}) for path in files)
    return begun, plain


@pytest.fixture(scope="module")
def pairs(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Two:
    begun, plain = (build_pairs(PAIRS, tmp_path_factory.mktemp("pairs"), tokenizer={"path": path}) for path in files)
    return begun, plain


def stream(dataset: Dataset, split: Any = "train") -> list[int]:
    tokens: list[int] = dataset.window(split, 0, dataset.num_tokens(split)).tolist()
    return tokens


def test_each_document_begins_with_it_and_the_manifest_says_so(texts: Two, pairs: Two) -> None:
    for begun, plain in (texts, pairs):
        begin, end = begun.tokenizer().begin_of_text, begun.tokenizer().end_of_text
        assert (begun.manifest.begin_of_text, plain.manifest.begin_of_text) == (begin, None)
        for split in SPLITS:
            both = [list(dataset.documents(split)) for dataset in (begun, plain)]
            assert [(record, ids.tolist()) for record, ids in both[0]] == [(r, ids.tolist()) for r, ids in both[1]]
            assert stream(begun, split) == [id for _, ids in both[0] for id in (begin, *ids.tolist(), end)]
            documents = begun.manifest.splits[split].documents
            assert begun.num_tokens(split) == plain.num_tokens(split) + documents == len(stream(begun, split))
        assert begun.unigram_counts()[begin] == begun.manifest.splits["train"].documents
        assert begun.manifest.build.identity != plain.manifest.build.identity


def test_a_dataset_without_begins_is_what_it_was(tmp_path: Path) -> None:
    """Recorded before datasets could have begins: identity, tokens, and the manifest but for names of files."""
    made = build_dataset(TEXTS, tmp_path, tokenizer={"type": "bytes"})
    manifest = json.loads((made.directory / MANIFEST).read_text())
    assert "begin_of_text" not in manifest
    assert (made.identity, made.manifest.build.identity) == RECORDED[:2]
    for part in ("checksum", "build"):
        del manifest[part]
    for split in manifest["splits"].values():  # what earlier versions did not count
        assert split.pop("copies") == 0
        assert split.pop("characters") <= split["text_bytes"]
        assert split.pop("unicode_words") >= split["words"]
    assert hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest() == RECORDED[2]


def rows_of(dataset: Dataset, recipe: Any, split: Any = "train") -> tuple[Any, Any]:
    samples = recipe.samples(dataset, split)
    ids = np.array([[0, 1, number] for number in range(samples.count)])
    return samples.rows(3, ids), samples.token_spans(3, ids)


OWN_SPECIALS: dict[str, dict[str, Any]] = {
    "masked": {"name": "masked"},
    "whole_words": {"name": "masked", "whole_words": True, "mask_smoothing": 0},
    "next_sentence": {"name": "masked", "next_sentence": True},
    "sentence_order": {"name": "masked", "sentence_order": True},
    "replaced_tokens": {"name": "replaced_tokens"},
    "permuted": {"name": "permuted"},
    "permuted_both_ways": {"name": "permuted", "bi_data": True},
    "span_corruption": {"name": "span_corruption"},
    "denoising": {"name": "denoising"},
    "prefix_lm": {"name": "prefix_lm"},
    "gap_sentences": {"name": "gap_sentences"},
}


@pytest.mark.parametrize("settings", OWN_SPECIALS.values(), ids=OWN_SPECIALS)
def test_recipes_with_special_tokens_of_their_own_leave_it_out(texts: Two, settings: dict[str, Any]) -> None:
    """Their rows are those of a dataset without; spans say where the tokens are in this one."""
    _check_left_out(texts, settings)


@pytest.mark.parametrize("name", ["pairs", "tlm"])
def test_pairs_leave_it_out(pairs: Two, name: str) -> None:
    _check_left_out(pairs, {"name": name})


def _check_left_out(both: Two, settings: dict[str, Any]) -> None:
    objective = OBJECTIVES[settings["name"]](**settings)
    made = [rows_of(dataset, objective.recipe(dataset.tokenizer(), LENGTH)) for dataset in both]
    (rows, spans), (expected, expected_spans) = made
    columns = {name: values for name, _, values in expected.columns()}
    assert [name for name, _, _ in rows.columns()] == list(columns)
    for name, _, values in rows.columns():
        assert np.array_equal(values, columns[name]), name
    begin = both[0].manifest.begin_of_text
    for (row, start, count), (other, first, size) in zip(spans.tolist(), expected_spans.tolist(), strict=True):
        inside = both[0].window("train", start, count)
        assert row == other
        assert begin not in inside[[0, -1]]
        assert inside[inside != begin].tolist() == both[1].window("train", first, size).tolist()


@pytest.mark.parametrize("packing", [{}, {"packing": "best_fit"}, {"document_mask": True}], ids=str)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_rows_of_the_next_token_have_it_where_a_document_begins(
    texts: Two, packing: dict[str, Any], direction: Any
) -> None:
    begun, _ = texts
    begin = begun.manifest.begin_of_text
    recipe = Causal(direction=direction, **packing).recipe(begun.tokenizer(), LENGTH)
    rows, spans = rows_of(begun, recipe)
    source: Any = begun if direction == "forward" else BackwardText(begun)
    written, starts = source.window("train", 0, begun.num_tokens("train")), set(begun.starts("train").tolist())
    labelled = rows.loss_mask > 0
    for row, tokens in enumerate(rows.tokens.tolist()):
        own = [span[1:] for span in spans.tolist() if span[0] == row]
        for start, count in own if direction == "forward" else []:
            assert (start in starts) == (begun.window("train", start, 1)[0] == begin)
            inside = sum(start <= place < start + count for place in starts)
            assert (begun.window("train", start, count) == begin).sum() == inside
        if packing and direction == "forward":  # nothing of a document comes before its begin, which is no label
            assert begin not in rows.labels[row][labelled[row]].tolist()
            documents = rows.documents[row]
            first = np.flatnonzero(np.diff(documents, prepend=-2))
            inner = [place for place in range(LENGTH) if place not in first]
            assert begin not in [tokens[place] for place in inner if documents[place] >= 0]
        if not packing:
            place = row * LENGTH
            order = rows.tokens[row], written[place : place + LENGTH]
            assert np.array_equal(*order)
    # Of 60 documents (and two of one token), each is read from its begin on once, or up to it if read from its end.
    read = rows.tokens if direction == "forward" else rows.labels
    seen = (read == begin) & (labelled if packing else True)
    assert abs(int(seen.sum()) - begun.manifest.splits["train"].documents) <= (0 if packing else 1)


def test_a_code_of_a_source_comes_after_it(texts: Two) -> None:
    """The code follows the begin, as it does in a prompt. The begin has no loss; each other token has one."""
    begun, _ = texts
    begin, code = begun.manifest.begin_of_text, begun.tokenizer().encode("code")
    recipe = OBJECTIVES["control"](codes={begun.name: "code"}).recipe(begun.tokenizer(), 4 + len(code))
    rows, _ = rows_of(begun, recipe)
    starts = set(begun.starts("train").tolist())
    opened = [number for number in range(len(rows.tokens)) if number * 5 in starts]
    assert 3 < len(opened) < len(rows.tokens)
    for number, tokens in enumerate(rows.tokens.tolist()):
        text = begun.window("train", number * 5, 5).tolist()
        first = [begin, *code, *text[1:]] if number in opened else [*code, *text]
        assert [*tokens, rows.labels[number, -1]] == first
        counted = rows.labels[number][rows.loss_mask[number] > 0].tolist()
        assert counted == (text[1:] if number in opened else text)


def test_held_out_windows_predict_it_after_the_end_of_the_document_before(texts: Two) -> None:
    begun, _ = texts
    said = [batch.labels[batch.loss_mask > 0] for batch in heldout(begun, LENGTH, rows=4)]
    assert np.concatenate(said).tolist() == stream(begun, "validation")[1:]


def test_units_of_documents_are_where_they_are_without_it(texts: Two, tmp_path: Path) -> None:
    lines = tmp_path / "units.jsonl"
    lines.write_text("".join(json.dumps({"text": text, "units": [[0, 1]]}) + "\n" for text in TEXTS))
    objective = OBJECTIVES["masked"](units="optional")
    made = []
    for dataset in texts:
        assert find_units(dataset, [lines], "text", "units").listed > 1
        made.append(rows_of(dataset, objective.recipe(dataset.tokenizer(), LENGTH))[0])
    assert np.array_equal(made[0].tokens, made[1].tokens)


def test_texts_that_are_shown_do_not_have_it(texts: Two, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for dataset in texts:
        inspect(str(dataset.directory))
        shown.append(capsys.readouterr().out.split("---")[-1])
        tokenizer, span = dataset.tokenizer(), dataset.starts("train")[1:3]
        shown.append(dataset.excerpt("train", int(span[0]), int(span[1] - span[0]), tokenizer))
    (begun, first), (plain, excerpt) = shown[:2], shown[2:]
    assert begun == plain
    assert excerpt.startswith(first)
    assert len(first) > len(excerpt) - 12  # of 64 tokens, of which one is the begin


def test_pairs_may_begin_with_what_their_texts_end_with(pairs: Two, tmp_path: Path) -> None:
    file, _ = tokenizer_files(TEXTS, tmp_path, "</s>")
    begun = build_pairs(PAIRS, tmp_path, tokenizer={"path": file})
    assert begun.manifest.begin_of_text == begun.manifest.tokenizer.end_of_text
    recipes = [OBJECTIVES["pairs"]().recipe(dataset.tokenizer(), LENGTH) for dataset in (begun, pairs[1])]
    rows, expected = (rows_of(dataset, one)[0] for dataset, one in zip((begun, pairs[1]), recipes, strict=True))
    assert np.array_equal(rows.tokens, expected.tokens)
    assert np.array_equal(rows.labels, expected.labels)


def test_a_begin_outside_the_vocabulary_or_of_another_tokenizer_is_refused(texts: Two) -> None:
    begun, _ = texts
    values = begun.manifest.model_dump()
    with pytest.raises(ValueError, match="begin of text is no token"):
        DatasetManifest.model_validate(values | {"begin_of_text": 400})
    other = Dataset(begun.directory)
    other.manifest = begun.manifest.model_copy(update={"begin_of_text": 7})
    with pytest.raises(DataError, match="isn't the tokenizer that made this dataset"):
        other.tokenizer()
