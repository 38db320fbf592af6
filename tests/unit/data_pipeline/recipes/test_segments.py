"""Where a document is cut into two segments: at sentence ends, also one that only the last token follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data_pipeline.recipes.base import Ids
from data_pipeline.recipes.masking import Masking
from data_pipeline.recipes.segments import Segments, SwappedSegments
from data_pipeline.tokenizers.specials import Specials, Vocabulary

LENGTH, END_OF_TEXT, FULL_STOP = 10, 4, 5
KNOWN = Vocabulary(
    specials=Specials(pad=0, cls=1, sep=2, mask=3, start=-1, end=-1, sentinels=(), vocabulary=400),
    tokenizer="", end_of_text=END_OF_TEXT,
    is_special=np.arange(400) < 5, starts_word=np.arange(400) > 5, ends_sentence=np.arange(400) == FULL_STOP,
    ordinary=np.arange(5, 400),
)  # fmt: skip


class Stream:
    """Documents of LENGTH different tokens, of which the last but one ends a sentence, as a split's stream."""

    address = "documents"

    def __init__(self, count: int = 3) -> None:
        document = np.arange(count)[:, None] * LENGTH + np.arange(LENGTH + 1) + 100
        document[:, -3:-2], document[:, -1] = FULL_STOP, END_OF_TEXT
        self.tokens, self.count = document.reshape(-1), count

    def starts(self, split: str) -> Ids:
        return np.arange(self.count) * (LENGTH + 1)

    def num_tokens(self, split: str) -> int:
        return len(self.tokens)

    def window(self, split: str, start: int, count: int) -> Ids:
        return self.tokens[start : start + count].copy()


def segments_of(kind: type[Segments]) -> list[tuple[list[int], list[int], bool]]:
    """(first segment, second segment, whether it follows) of 200 samples."""
    stream: Any = Stream()
    masking = Masking(known=KNOWN, noise_density=0.15)
    samples = kind(stream, "train", masking, sequence_length=LENGTH + 3, text_tokens=LENGTH, short_fraction=0.0)
    assert samples.count == stream.count
    ids = np.array([[0, epoch, epoch % stream.count] for epoch in range(200)])
    rows = samples.rows(0, ids)
    assert rows.segments is not None
    assert rows.next_sentence is not None
    found = []
    for labels, segments, follows in zip(rows.labels, rows.segments, rows.next_sentence, strict=True):
        texts = [labels[(segments == number) & ~KNOWN.is_special[labels]].tolist() for number in (0, 1)]
        found.append((texts[0], texts[1], bool(follows)))
    return found


@pytest.mark.parametrize("kind", [Segments, SwappedSegments])
def test_a_sentence_end_that_one_token_follows_is_where_the_segments_meet(kind: type[Segments]) -> None:
    for first, second, follows in segments_of(kind):
        whole, last = (second, first) if kind is SwappedSegments and not follows else (first, second)
        assert (len(whole), whole[-1], len(last)) == (LENGTH - 1, FULL_STOP, 1)


def test_a_segment_from_another_document_may_begin_at_its_last_token() -> None:
    begins = [second[0] % LENGTH for _, second, follows in segments_of(Segments) if not follows]
    assert set(begins) == {0, LENGTH - 1}, "at the document's begin, or after its only sentence end"
    assert np.mean(np.array(begins) > 0) > 0.8
