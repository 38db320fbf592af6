"""Every tokenizer as a tokenizer.json: the same ids for text of all kinds."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
import sentencepiece
import tokenizers

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer, train_tokenizer
from data_pipeline.tokenizers.sentencepiece import SentencePiece
from tests.helpers.datasets import make_documents
from tests.unit.data_pipeline.tokenizers.test_tokenizer_bytes import write_gpt2
from tests.unit.data_pipeline.tokenizers.test_tokenizer_fuzz import TRAINED, random_text


def _foreign(**how: object) -> SentencePiece:
    """A model with common training options: a space before each text, and no double spaces."""
    model = io.BytesIO()
    lines = (line for text in make_documents(0, 100) for line in text.split("\n"))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, minloglevel=2,
        **({"normalization_rule_name": "identity", "model_type": "bpe", "vocab_size": 480} | how),
    )  # fmt: skip
    return SentencePiece(model.getvalue(), "foreign.model")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    made: dict[str, Tokenizer] = {kind: train_tokenizer(make_documents(0, 200), kind, 500) for kind in TRAINED}
    made["bytes"] = train_tokenizer([], "bytes", 259)
    made["gpt2"] = load_tokenizer(write_gpt2(tmp_path_factory.mktemp("gpt2")))
    made["foreign bpe"] = _foreign()
    made["foreign bpe with bytes"] = _foreign(byte_fallback=True, vocab_size=560)
    made["foreign unigram"] = _foreign(model_type="unigram", hard_vocab_limit=False)
    return made


@pytest.mark.parametrize(
    "kind", [*TRAINED, "bytes", "gpt2", "foreign bpe", "foreign bpe with bytes", "foreign unigram"]
)
def test_a_tokenizer_json_gives_the_same_ids_and_texts(kind: str, loaded: dict[str, Tokenizer]) -> None:
    tokenizer, draw = loaded[kind], random.Random(kind)
    there = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    there.encode_special_tokens = True
    pieces = [piece for piece in tokenizer.texts() if piece]
    texts = [random_text(draw) for _ in range(400)] + ["---|---|---|" * 9, "a " * 9000, "", " ", "<0x0A>x</s><unk>"]
    texts += ["".join(draw.choices(pieces, k=9)) for _ in range(400)]
    for text, ids in zip(texts, tokenizer.encode_batch(texts, threads=1), strict=True):
        assert there.encode(text).ids == ids.tolist(), text
        if tokenizer.decode(ids) == text:
            assert there.decode(ids.tolist()) == text


@pytest.mark.parametrize("kind", ["bytes", "byte_bpe"])
def test_a_tokenizer_json_of_bytes_decodes_broken_characters_alike(kind: str, loaded: dict[str, Tokenizer]) -> None:
    tokenizer, draw = loaded[kind], random.Random(1)
    there = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    for _ in range(500):
        ids = [index for index in tokenizer.encode(random_text(draw))[:40] if draw.random() < 0.8]
        assert there.decode(ids) == tokenizer.decode(ids), ids


def test_scores_of_a_trained_unigram_sum_without_rounding() -> None:
    """Else the library that adds them up in fp64 breaks ties as no other does."""
    tokenizer = train_tokenizer(make_documents(0, 50), "unigram", 350)
    assert isinstance(tokenizer, SentencePiece)
    scores = [tokenizer._processor.get_score(index) for index in range(tokenizer.vocabulary_size)]
    assert all((score * 256).is_integer() for score in scores)
    assert len(set(scores)) > 20


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"model_type": "word", "hard_vocab_limit": False}, "neither bpe nor unigram"),
        ({"user_defined_symbols": ["<sep>"]}, "'<sep>' is neither learnt nor a control"),
        ({"treat_whitespace_as_suffix": True}, "with spaces first"),
    ],
)
def test_what_the_format_has_no_word_for_is_refused(how: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        _foreign(**how).to_json()


def test_a_special_token_is_in_no_text(loaded: dict[str, Tokenizer], tmp_path: Path) -> None:
    there = tokenizers.Tokenizer.from_str(loaded["unigram"].to_json())
    there.encode_special_tokens = True
    assert loaded["unigram"].end_of_text not in there.encode("a <|endoftext|> b").ids
