"""A streamed text is the whole text, in pieces that hold complete characters only."""

import pytest

from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.byte import ByteTokenizer
from data_pipeline.tokenizers.load import train_tokenizer
from pretrain.evaluate.decoding.stream import TextStream

TEXT = "Würzburg 中文 \U0001f600\U0001f680 end."


def _trained(kind: str) -> Tokenizer:
    if kind == "bytes":
        return ByteTokenizer()
    return train_tokenizer(["the end of the text. " * 40], kind, 270)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bytes", "bpe", "byte_bpe"])
def test_pieces_are_complete_characters_that_make_the_text(kind: str) -> None:
    tokenizer = _trained(kind)
    ids = tokenizer.encode(TEXT)
    assert len(ids) > len(TEXT), "characters of several tokens"
    stream = TextStream(tokenizer.decode)
    pieces = [stream.add(index) for index in ids]
    assert "".join(pieces) == TEXT
    assert stream.end() == ""
    assert "" in pieces
    assert not any("\ufffd" in piece for piece in pieces)
    assert len([piece for piece in pieces if piece]) > len(TEXT) / 2, "as it comes, not at the end"


def test_bytes_that_make_no_character_are_shown_once_that_is_sure() -> None:
    tokenizer = ByteTokenizer()
    first = tokenizer.encode("é")[0]
    stream = TextStream(tokenizer.decode)
    assert [stream.add(index) for index in [*tokenizer.encode("a"), first, *tokenizer.encode("b")]] == [
        "a", "", "\ufffdb",
    ]  # fmt: skip
    assert stream.add(first) == ""
    assert stream.end() == "\ufffd"


def test_it_goes_on_after_its_context() -> None:
    tokenizer = ByteTokenizer()
    whole = tokenizer.encode("a\u00e9z")
    stream = TextStream(tokenizer.decode, whole[:1])
    assert "".join(map(stream.add, whole[1:])) == "\u00e9z"


def test_nothing_of_a_stop_is_shown_and_what_only_began_like_one_is() -> None:
    tokenizer = ByteTokenizer()
    stream = TextStream(tokenizer.decode, (), ["END", "\n\n"])
    pieces = [stream.add(index) for index in tokenizer.encode("xEx\nyEND")]
    assert pieces == ["x", "", "Ex", "", "\ny", "", "", ""]
    assert stream.end() == ""
    open_ended = TextStream(tokenizer.decode, (), ["END"])
    assert "".join(map(open_ended.add, tokenizer.encode("xEN"))) + open_ended.end() == "xEN"
