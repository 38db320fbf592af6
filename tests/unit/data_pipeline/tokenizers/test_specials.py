"""Specials are found where the tokenizer has them, and appended in a fixed order where it lacks them."""

from __future__ import annotations

import pytest
import tokenizers

from data_pipeline.errors import DataError
from data_pipeline.recipes.registry import OBJECTIVES
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.byte import ByteTokenizer
from data_pipeline.tokenizers.hf_json import JsonTokenizer
from data_pipeline.tokenizers.load import train_tokenizer
from data_pipeline.tokenizers.specials import Vocabulary
from tests.helpers.datasets import make_documents

TEXTS = make_documents(0, 200)


@pytest.fixture(scope="module")
def plain() -> Tokenizer:
    """Knows <|endoftext|> only."""
    return train_tokenizer(TEXTS, "bpe", 400)


def t5_like(sentinels: list[int]) -> Tokenizer:
    """<pad> 0, </s> 1, two letters, and some sentinels from 4 on, in the order given."""
    model = tokenizers.models.BPE({"<pad>": 0, "</s>": 1, "a": 2, "b": 3}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_special_tokens(["<pad>", "</s>", *(f"<extra_id_{number}>" for number in sentinels)])
    return JsonTokenizer(tokenizer.to_str().encode(), "t5")


def test_a_vocabulary_with_s_for_another_use_has_its_own_cls_and_sep() -> None:
    """A vocabulary like XLNet's, whose <s> and </s> are unused."""
    ids = {"</s>": 0, "<s>": 1, "<unk>": 2, "<cls>": 3, "<sep>": 4, "<pad>": 5, "a": 6, "b": 7}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
    tokenizer.add_special_tokens([name for name in ids if name.startswith("<")])
    found = OBJECTIVES["permuted"]().specials(JsonTokenizer(tokenizer.to_str().encode(), "xlnet"))
    assert (found.cls, found.sep, found.pad, found.vocabulary) == (3, 4, 5, 8)


def test_causal_appends_nothing(plain: Tokenizer) -> None:
    assert OBJECTIVES["causal"]().specials(plain).vocabulary == 400


def test_what_lacks_is_appended_in_order_and_sentinel_0_comes_last(plain: Tokenizer) -> None:
    masked = OBJECTIVES["masked"]().specials(plain)
    assert (masked.pad, masked.cls, masked.sep, masked.mask, masked.vocabulary) == (400, 401, 402, 403, 404)
    spans = OBJECTIVES["span_corruption"](sentinels=3).specials(plain)
    assert (spans.pad, spans.sentinels, spans.vocabulary) == (400, (403, 402, 401), 404)
    assert (spans.start, spans.end, spans.mask) == (400, plain.end_of_text, -1)
    denoising = OBJECTIVES["denoising"]().specials(plain)
    assert (denoising.pad, denoising.cls, denoising.mask, denoising.vocabulary) == (400, 401, 402, 403)
    assert denoising.start == denoising.end == plain.end_of_text
    for name in ("drop", "prefix_lm", "deshuffling", "pairs"):
        assert OBJECTIVES[name]().specials(plain).vocabulary == 401
    for name in ("bert_style", "mass_style"):
        assert OBJECTIVES[name]().specials(plain).mask == 401


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_bert_s_and_roberta_s_own_are_found(kind: str) -> None:
    tokenizer = train_tokenizer(TEXTS, kind, 500)  # type: ignore[arg-type]
    found = OBJECTIVES["masked"]().specials(tokenizer)
    names = ("[PAD]", "[CLS]", "[SEP]", "[MASK]") if kind == "wordpiece" else ("<pad>", "<s>", "</s>", "<mask>")
    assert (found.pad, found.cls, found.sep, found.mask) == tuple(map(tokenizer.id_of, names))
    assert found.end == tokenizer.end_of_text
    assert found.vocabulary == 500


def test_sentencepiece_s_control_symbols_are_found() -> None:
    tokenizer = train_tokenizer(TEXTS, "bpe", 400, "t5")
    found = OBJECTIVES["span_corruption"](sentinels=2).specials(tokenizer)
    assert (found.pad, found.end) == (tokenizer.id_of("<pad>"), tokenizer.id_of("</s>"))
    assert found.start == found.pad
    assert found.end != tokenizer.end_of_text
    assert (found.sentinels, found.vocabulary) == ((401, 400), 402)


def test_byt5_s_sentinels_are_the_last_bytes() -> None:
    objective = OBJECTIVES["span_corruption"](sentinel_ids="last")
    found = objective.specials(ByteTokenizer())
    assert (found.sentinels[0], found.sentinels[-1], len(found.sentinels)) == (258, 159, 100)
    assert (found.pad, found.end, found.vocabulary) == (0, 1, 259)
    assert not Vocabulary.of(ByteTokenizer(), objective.needs).is_special[159:].any(), "text has them, too"
    with pytest.raises(DataError, match="sentinels=259 are to be the tokenizer's last ids, of which it has 259"):
        OBJECTIVES["span_corruption"](sentinels=259, sentinel_ids="last").specials(ByteTokenizer())


def test_t5_s_sentinels_are_found_and_only_missing_ones_appended() -> None:
    objective = OBJECTIVES["span_corruption"](sentinels=3)
    assert objective.specials(t5_like([2, 1, 0])).sentinels == (6, 5, 4)
    partly = objective.specials(t5_like([0]))
    assert (partly.sentinels, partly.vocabulary) == ((4, 6, 5), 7)


def test_the_vocabulary_covers_appended_ids(plain: Tokenizer) -> None:
    known = Vocabulary.of(plain, OBJECTIVES["masked"]().needs)
    assert len(known.is_special) == len(known.starts_word) == len(known.ends_sentence) == 404
    assert known.is_special[400:].all()
    assert not known.is_special[known.ordinary].any()
    assert plain.end_of_text not in known.ordinary
    assert len(known.ordinary) == 400 - plain.is_special().sum()
