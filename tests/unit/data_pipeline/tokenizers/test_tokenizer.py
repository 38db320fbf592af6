"""Lossless, deterministic, with an end of text that text can't produce."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from data_pipeline.errors import DataError
from data_pipeline.tokenizers import sentencepiece as module
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer, train_tokenizer
from data_pipeline.tokenizers.sentencepiece import SentencePiece
from tests.helpers.datasets import ODD, make_documents


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(make_documents(0, 200), request.param, 500)


@pytest.mark.parametrize("text", ODD)
def test_odd_text_comes_back(trained: Tokenizer, text: str) -> None:
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert trained.end_of_text not in ids
    assert trained.encode(text) == trained.encode_batch([text, text])[1].tolist()


def test_random_text_comes_back(trained: Tokenizer) -> None:
    draw = random.Random(0)
    blocks = [(0, 0x80), (0x2570, 0x2590), (0x20, 0x22), (0x4E00, 0x4E10), (0xE000, 0x11000), (0, 0xD800)]
    for _ in range(300):
        text = "".join(chr(draw.randrange(*draw.choice(blocks))) for _ in range(draw.randrange(60)))
        assert trained.decode(trained.encode(text)) == text


def test_real_text_comes_back(trained: Tokenizer, real_text: Path) -> None:
    for path in real_text.glob("*.txt"):
        text = path.read_text(encoding="utf-8")[:300_000]
        assert trained.decode(trained.encode(text)) == text


def test_the_end_of_text_is_a_control_piece(trained: Tokenizer) -> None:
    assert trained.decode([trained.end_of_text]) == ""
    assert 0 <= trained.end_of_text < trained.vocabulary_size == 500


def test_training_again_gives_the_same_bytes(trained: Tokenizer, tmp_path: Path) -> None:
    kind = "bpe" if trained.identity == _bare_digest(trained, tmp_path) else "unigram"
    again = train_tokenizer(make_documents(0, 200), kind, 500)
    again.save(tmp_path / "again.model")
    assert (tmp_path / "again.model").read_bytes() == (tmp_path / "one.model").read_bytes()
    assert again.identity == trained.identity == load_tokenizer(tmp_path / "again.model").identity


def test_long_text_encodes_as_it_would_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    bpe = train_tokenizer(make_documents(0, 200), "bpe", 500)
    text = "   \n".join(make_documents(3, 100))
    whole = bpe.encode(text) if len(text) <= module._ENCODE_CHARACTERS else None
    assert whole is None  # so the default cuts it
    parts = bpe.encode(text)
    monkeypatch.setattr(module, "_ENCODE_CHARACTERS", 10**9)
    assert bpe.encode(text) == parts
    monkeypatch.setattr(module, "_ENCODE_CHARACTERS", 50)
    assert bpe.encode(text) == parts


def test_a_sample_of_one_long_line_is_not_skipped() -> None:
    words = " ".join(make_documents(0, 400)).replace("\n", " ")
    assert len(words) > 10 * module._SAMPLE_CHARACTERS
    one_line = train_tokenizer([words], "bpe", 500)
    assert len(one_line.encode(words)) < 0.5 * len(words)


def test_a_vocabulary_the_text_does_not_fill_names_one_that_it_does() -> None:
    for kind in ("bpe", "unigram"):
        with pytest.raises(DataError, match=r"too small .*=50000; the largest possible is (\d+)") as caught:
            train_tokenizer(make_documents(0, 20), kind, 50_000)
        largest = int(str(caught.value).rstrip(".").rpartition(" ")[2])
        assert train_tokenizer(make_documents(0, 20), kind, largest).vocabulary_size == largest


def test_a_vocabulary_too_small_for_the_characters_names_one_that_is_not() -> None:
    with pytest.raises(DataError, match=r"the smallest possible is (\d+)") as caught:
        train_tokenizer(make_documents(0, 20), "bpe", 260)
    smallest = int(str(caught.value).rstrip(".").rpartition(" ")[2])
    assert train_tokenizer(make_documents(0, 20), "bpe", smallest).vocabulary_size == smallest


def test_training_on_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="give more text"):
        train_tokenizer([], "bpe", 500)


def test_unigram_is_another_tokenizer_under_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {kind: train_tokenizer(make_documents(0, 99), kind, 400) for kind in ("bpe", "unigram")}
    monkeypatch.setattr(sentencepiece, "__version__", "9.9.9")
    after = {kind: SentencePiece(tokenizer._model, "same") for kind, tokenizer in before.items()}
    assert after["bpe"].identity == before["bpe"].identity
    assert after["unigram"].identity != before["unigram"].identity


def test_a_given_model_ends_documents_with_its_own_eos() -> None:
    given = SentencePiece(foreign_model(eos_id=2), "given.model")
    assert given.end_of_text == 2


@pytest.mark.parametrize("tidies", [True, False])
def test_a_given_model_with_a_dummy_prefix_encodes_long_text_in_one_go(
    tidies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = SentencePiece(foreign_model(eos_id=2, remove_extra_whitespaces=tidies), "given.model")
    text = "abc def " * 50
    whole = given.encode(text)
    monkeypatch.setattr(module, "_ENCODE_CHARACTERS", 20)
    assert given.encode(text) == whole


def test_a_given_model_that_cannot_end_documents_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "given.model"
    path.write_bytes(foreign_model(eos_id=-1))
    with pytest.raises(DataError, match=r"given.model has neither"):
        load_tokenizer(path)


def test_files_that_are_no_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.model").write_bytes(b"not a model")
    (tmp_path / "b.model").write_bytes(b"")
    for name in ("a", "b", "c"):
        with pytest.raises(DataError, match=f"{name}.model"):
            load_tokenizer(tmp_path / f"{name}.model")


def foreign_model(**changes: Any) -> bytes:
    """A model as sentencepiece trains it by default: with a space put before every text."""
    model = io.BytesIO()
    texts: Iterable[str] = iter(make_documents(0, 200))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=model, vocab_size=300, model_type="bpe", minloglevel=2, **changes
    )
    return model.getvalue()


def _bare_digest(tokenizer: Tokenizer, folder: Path) -> str:
    from data_pipeline.common.hashing import file_sha256

    tokenizer.save(folder / "one.model")
    return file_sha256(folder / "one.model")
