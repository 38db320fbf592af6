"""What a step's tally counts and shows of documents that go through."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest

from data_pipeline.reading.documents import Document, batched
from data_pipeline.reading.step_stats import StepStats
from tests.helpers.steps import documents_of


def halves(documents: Iterable[Document], stats: StepStats) -> Iterator[Document]:
    """Drops texts of `x`, cuts those of `y` to half, and leaves others as they are; in batches, as steps do."""
    for batch in batched(documents, 25):
        for document in batch:
            text = document.text
            if text[0] == "x":
                stats.drop(document, "is x")
            elif text[0] == "y":
                yield replace(document, texts=(text[: len(text) // 2],))
            else:
                yield document


def tally_of(documents: Sequence[Document]) -> StepStats:
    stats = StepStats()
    list(stats.count_output(halves(stats.count_input(documents), stats)))
    return stats


TEXTS = ["x" * 10, "y" * 20, "z" * 30, "x" * 40, "x" * 50, "y" * 60, "z" * 70]


def test_characters_are_counted_by_what_became_of_their_documents() -> None:
    stats = tally_of(documents_of(TEXTS))
    assert (stats.seen, stats.kept, stats.dropped) == (7, 4, {"is x": 3})
    assert stats.dropped_characters == {"is x": 100}
    assert stats.characters == {"seen": 280, "kept": 10 + 30 + 30 + 70, "of_kept": 20 + 30 + 60 + 70}


def test_samples_show_documents_kept_and_changed() -> None:
    stats = tally_of(documents_of(TEXTS))
    assert sorted(sample["text"] for sample in stats.samples_kept) == ["z" * 30, "z" * 70]
    changed = {sample["index"]: (sample["before"], sample["text"]) for sample in stats.samples_changed}
    assert changed == {1: ("y" * 20, "y" * 10), 5: ("y" * 60, "y" * 30)}


def test_a_sample_of_a_long_document_shows_where_it_was_changed() -> None:
    (sample,) = tally_of([Document(("y" * 30_000,), "a", 0)]).samples_changed
    assert (sample["at"], sample["before"], sample["text"]) == (14_900, "y" * 500, "y" * 100)


@pytest.mark.parametrize("cut", [1, 13, 99])
def test_counts_and_samples_are_the_same_however_the_work_is_cut(cut: int) -> None:
    documents = documents_of([f"{'xyz'[n % 3]}{'-' * (n % 7 + 1)}{n}" for n in range(100)])
    whole, parts = tally_of(documents), StepStats()
    for some in (documents[cut:], documents[:cut]):
        parts.add(StepStats.from_dict(json.loads(json.dumps(tally_of(some).to_dict()))))
    assert parts.to_dict() == whole.to_dict()
    assert [len(samples) for samples in (whole.samples["is x"], whole.samples_kept, whole.samples_changed)] == [5, 3, 3]


def test_pieces_of_one_document_count_together() -> None:
    pieces = [Document((text,), "a", 0, part) for part, text in enumerate(["x" * 10, "z" * 20, "y" * 30])]
    stats = tally_of([*pieces, Document(("x" * 5,), "a", 1)])
    assert stats.characters == {"seen": 65, "kept": 35, "of_kept": 60}
    assert not stats.samples_kept, "a piece is not taken for the whole"
    assert not stats.samples_changed


def test_only_a_step_that_takes_more_than_half_of_what_it_keeps_is_warned_of() -> None:
    assert tally_of(documents_of(["y" * 20, "x" * 900])).warning("c4") is None, "half, and what is dropped is no part"
    warning = tally_of(documents_of(["y" * 21])).warning("c4")
    assert warning is not None
    assert "c4 took 52% of the text" in warning
    assert StepStats().warning("c4") is None
