"""Units of documents, such as named entities, and spans of words: what is masked together, how often, and what is
refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from data_pipeline.batch import Rows
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.mask_units import UNITS_FILE, MaskUnits, find_units
from data_pipeline.errors import DataError
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.masked import Masked
from data_pipeline.recipes.masking import Masking
from data_pipeline.tokenizers.specials import Specials, Vocabulary
from pretrain.__main__ import main
from tests.helpers.datasets import build_dataset, make_documents

LENGTH = 64
ENTITY = "Ostwald Kremer"


def _entities(text: str) -> list[list[int]]:
    found, begin = list[list[int]](), text.find(ENTITY)
    while begin >= 0:
        found.append([begin, begin + len(ENTITY)])
        begin = text.find(ENTITY, begin + 1)
    return found


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Documents in which every eighth word is a name of two words."""
    draw, made = random.Random(3), []
    for text in make_documents(3, 300):
        words = text.strip().replace("\n", " ").split(" ")
        made.append(" ".join(ENTITY if draw.random() < 1 / 8 else word for word in words))
    return made


@pytest.fixture(scope="module", params=["bpe", "byte_bpe"])
def dataset(request: pytest.FixtureRequest, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("units")
    return build_dataset(texts, folder, tokenizer={"type": request.param, "vocabulary": 400})


def _lines(texts: list[str], path: Path) -> Path:
    path.write_text("".join(json.dumps({"text": text, "units": _entities(text)}) + "\n" for text in texts))
    return path


def _stream(dataset: Dataset, **settings: Any) -> tuple[Masked, SampleStream]:
    objective = Masked(**settings)
    recipe = objective.recipe(dataset.tokenizer(), LENGTH)
    return objective, SampleStream([(dataset, 1.0)], recipe, 1)


def _entity_spans(dataset: Dataset, rows: Rows) -> list[tuple[int, int, int]]:
    """(row, first, end) of each name that a row has whole."""
    tokenizer, spans = dataset.tokenizer(), []
    pieces = tokenizer.texts()
    for number, row in enumerate(rows.labels.tolist()):
        shown = [pieces[one] if one < len(pieces) else "" for one in row]
        ends = np.cumsum([len(piece) for piece in shown])
        text = "".join(shown)
        for begin, end in _entities(text):
            first = int(np.searchsorted(ends, begin, side="right"))
            spans.append((number, first, int(np.searchsorted(ends, end)) + 1))
    return spans


def test_units_are_masked_as_a_whole_as_often_as_words(dataset: Dataset, texts: list[str], tmp_path: Path) -> None:
    found = find_units(dataset, [_lines([*texts, "of no document"], tmp_path / "lines.jsonl")], "text", "units")
    documents = len(texts)
    assert (found.documents, found.listed, found.unmatched) == (documents, documents, 1)
    assert found.units == sum(len(_entities(text)) for text in texts)
    _, stream = _stream(dataset, units="required")
    rows = stream.batch(0, 1500)
    spans = _entity_spans(dataset, rows)
    assert len(spans) > 2000
    counts = np.array([rows.loss_mask[row, first:end].sum() for row, first, end in spans])
    sizes = np.array([end - first for _, first, end in spans])
    assert sizes.min() > 1, "or this says nothing"
    assert np.isin(counts / sizes, [0, 1]).all(), "whole or not at all"
    chosen = (counts > 0).mean()
    special = rows.labels >= dataset.vocabulary_size
    outside = ~special & (rows.labels != dataset.tokenizer().end_of_text)
    for row, first, end in spans:
        outside[row, first:end] = False
    single = rows.loss_mask[outside].mean()
    assert chosen == pytest.approx(0.15, abs=0.02), "units fit into the budget less often than tokens, but hardly"
    assert single == pytest.approx(0.15, abs=0.02)
    _, without = _stream(dataset)
    alone = without.batch(0, 1500)
    loose = [alone.loss_mask[row, first:end].mean() for row, first, end in spans]
    assert not np.isin(loose, [0, 1]).all(), "or names are whole by themselves"


def test_rows_with_units_are_the_same_on_any_ranks_and_part_of_the_order(
    dataset: Dataset, texts: list[str], tmp_path: Path
) -> None:
    find_units(dataset, [_lines(texts, tmp_path / "lines.jsonl")], "text", "units")
    _, stream = _stream(dataset, units="required", whole_words=True, ngrams=3)
    whole, parts = stream.batch(4, 8), [stream.batch(4, 8, rank, 4) for rank in range(4)]
    for name, _, values in Rows.columns(whole):
        assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), values)
    find_units(dataset, [_lines(texts[1:], tmp_path / "fewer.jsonl")], "text", "units")
    _, other = _stream(dataset, units="optional", whole_words=True, ngrams=3)
    again = _stream(dataset, units="optional", whole_words=True, ngrams=3)[1]
    assert len({stream.fingerprint, other.fingerprint}) == 2
    assert other.fingerprint == again.fingerprint


def test_documents_without_a_line_are_refused_unless_units_are_optional(
    dataset: Dataset, texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _lines([*texts[:200], "of no document"], tmp_path / "lines.jsonl")
    assert main(["data", "units", str(dataset.directory), str(lines)]) == 0
    printed = capsys.readouterr().out
    assert f"units in 200 of {len(texts)} documents" in printed
    assert "\n1 texts make no document's tokens" in printed
    with pytest.raises(
        DataError, match=r"of \d+ documents of the train split of .* have no line of units, such as doc"
    ):
        _stream(dataset, units="required")
    _, stream = _stream(dataset, units="optional")
    assert stream.batch(0, 8).loss_mask.any()
    (dataset.directory / UNITS_FILE).unlink()
    with pytest.raises(DataError, match=r"has no units for objective\.units: run `pretrain data units"):
        _stream(dataset, units="optional")


def test_units_of_other_tokens_are_refused(texts: list[str], tmp_path: Path) -> None:
    one, other = (build_dataset(texts[:n], tmp_path, f"of{n}") for n in (40, 60))
    find_units(one, [_lines(texts, tmp_path / "lines.jsonl")], "text", "units")
    (other.directory / UNITS_FILE).write_bytes((one.directory / UNITS_FILE).read_bytes())
    with pytest.raises(DataError, match="is of other tokens than"):
        MaskUnits.load(other, "train")
    whole = (one.directory / UNITS_FILE).read_bytes()
    for damaged in (b"nothing", whole[:-40], whole[:-9] + b"1" + whole[-8:]):
        (one.directory / UNITS_FILE).write_bytes(damaged)
        with pytest.raises(DataError, match="is damaged"):
            MaskUnits.load(one, "train")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text": "a b"}, r"line 2, field 'units' is not a list of \[first character, end\]"),
        ({"text": "a b", "units": [[0, 1, 2]]}, "is not a list of"),
        ({"text": "a b", "units": [[0, 4]]}, "has a unit that is empty or outside the text of 3 characters"),
        ({"text": "a b", "units": [[1, 1]]}, "has a unit that is empty"),
        ({"text": "a b", "units": [[0, 2], [1, 3]]}, "has units over each other"),
        ({"units": []}, "has no text in the field 'text'"),
        ({"text": "same", "units": [[0, 1]]}, "has other units than .*line 1,, which is the same text"),
    ],
)
def test_lines_that_do_not_say_what_units_are_are_refused(
    dataset: Dataset, tmp_path: Path, line: dict[str, Any], message: str
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"text": "same", "units": []}) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(DataError, match=message):
        find_units(dataset, [path], "text", "units")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"units": "required", "next_sentence": True}, "is for rows of one text"),
        ({"units": "optional", "mask_smoothing": 0.7}, "chooses single tokens"),
        ({"geometric": 0.2}, "is for spans of words: set objective.ngrams"),
        ({"mask_together": True}, "is for words and units"),
    ],
)
def test_settings_that_do_nothing_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Masked(**settings)


def _known(ids: int) -> Vocabulary:
    numbers = np.arange(ids)
    return Vocabulary(
        specials=Specials(pad=-1, cls=-1, sep=-1, mask=0, start=-1, end=-1, sentinels=(), vocabulary=ids),
        tokenizer="", end_of_text=-1, is_special=numbers == 0, starts_word=numbers % 2 == 0, ends_sentence=numbers < 0,
        ordinary=numbers[1:],
    )  # fmt: skip


def test_lengths_of_spans_are_geometric_and_spans_are_masked_alike() -> None:
    """SpanBERT's: at so low a density that spans hardly touch. Words are of two tokens."""
    row, found, kinds = np.arange(1000, 5000), np.zeros(11), np.zeros(3)
    masking = Masking(known=_known(5000), noise_density=0.02, whole_words=True, ngrams=10, geometric=0.2, together=True)
    for seed in range(600):
        tokens, counted = masking.masked(row, np.random.default_rng(seed))
        edges = np.flatnonzero(np.diff(np.pad(counted, 1)))
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            if end - first > 20:
                continue  # two that touch
            found[(end - first) // 2] += 1
            masked, kept = tokens[first:end] == 0, tokens[first:end] == row[first:end]
            kind = [masked.all(), not (masked | kept).any(), kept.all()]
            if sum(kind) == 1:
                kinds += kind
    expected = 0.8 ** np.arange(10)
    share = found[1:] / found.sum()
    # The last span of a row is cut to the budget, so that short ones are a little more frequent.
    assert np.abs(share - expected / expected.sum()).max() < 0.05, share
    assert (share * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.4)
    assert kinds.sum() > 0.97 * found.sum(), "but for spans that touch"
    assert kinds / kinds.sum() == pytest.approx([0.8, 0.1, 0.1], abs=0.02)


def test_a_recipe_says_how_it_masks() -> None:
    recipe = Masked(whole_words=True, ngrams=10, geometric=0.2, mask_together=True)
    settings = {"name": "masked", "whole_words": True, "ngrams": 10, "geometric": 0.2, "mask_together": True}
    assert recipe.settings() == settings
    assert "units" not in Masked().settings()
