"""Which characters of a text each token is made of."""

from __future__ import annotations

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.byte import ByteTokenizer
from data_pipeline.tokenizers.load import train_tokenizer
from data_pipeline.tokenizers.sentencepiece import SentencePiece
from data_pipeline.tokenizers.sentencepiece_json import parse
from tests.helpers.datasets import ODD, make_documents

KINDS = {"wordpiece": 400, "byte_bpe": 400, "unigram": 300, "bpe": 300, "bytes": 259}
TEXTS = [*ODD, *make_documents(3, 20), "Zoë's «naïve» 中文\t👩\u200d👩 x" * 3, "ab " * 5_000]


@pytest.fixture(scope="module", params=[*KINDS, "dummy_prefix"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param != "dummy_prefix":
        return train_tokenizer(make_documents(0, 100), request.param, KINDS[request.param])
    trained = train_tokenizer(make_documents(0, 100), "unigram", 300)
    assert isinstance(trained, SentencePiece)
    model = parse(trained._model)
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = True
    return SentencePiece(model.SerializeToString(), "a model with a space before each text")


def test_ids_are_those_of_encode_and_offsets_cover_the_text(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert ids.tolist() == tokenizer.encode(text), text[:200]
        assert offsets.shape == (len(ids), 2), text[:200]
        assert (offsets >= 0).all(), text[:200]
        assert (offsets <= len(text)).all(), text[:200]
        assert (np.diff(offsets, axis=0) >= 0).all(), text[:200]
        covered = {position for begin, end in offsets.tolist() for position in range(begin, end)}
        unseen = {text[position] for position in set(range(len(text))) - covered}
        if tokenizer.library in ("bytes", "sentencepiece") or tokenizer.decode(ids) == text:
            assert all(character.isspace() for character in unseen), (unseen, text[:200])


def test_the_characters_of_a_token_are_its_text(tokenizer: Tokenizer) -> None:
    pieces = tokenizer.texts()
    for text in TEXTS:
        ids, offsets = tokenizer.encode_with_offsets(text)
        for index, (begin, end) in list(zip(ids.tolist(), offsets.tolist(), strict=True))[:500]:
            piece = pieces[index].strip()
            if piece and piece.isascii() and text[begin:end].isascii():
                assert text[begin:end].strip().lower() == piece.lower(), text[:200]


def test_words_are_found_by_their_offsets(tokenizer: Tokenizer) -> None:
    text = "un dûbe ab"
    _, offsets = tokenizer.encode_with_offsets(text)
    ends = {end for _, end in offsets.tolist()}
    assert {2, 7, 10} <= ends, "each word ends with a token"


def test_special_pieces_are_those_that_id_of_knows(tokenizer: Tokenizer) -> None:
    pieces = tokenizer.special_pieces()
    assert pieces
    assert {piece: tokenizer.id_of(piece) for piece in pieces} == pieces
    assert tokenizer.end_of_text in pieces.values()


def test_a_tokenizer_that_cannot_tell_says_so() -> None:
    with pytest.raises(DataError, match="kind bytes does not say which characters its ids are made of"):
        Tokenizer.encode_with_offsets(ByteTokenizer(), "a")
