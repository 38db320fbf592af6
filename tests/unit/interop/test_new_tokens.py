"""Tokens that are added to a tokenizer: read from a file, and refused where no text would give them."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from data_pipeline.tokenizers.hf_json import train_byte_bpe
from data_pipeline.tokenizers.load import train_tokenizer
from pretrain.errors import ConfigError
from pretrain.interop.hf.new_tokens import GrownTokenizer, add_tokens

IDS = 270
TOOL = {"content": "<|tool|>", "special": True}


def former() -> Tokenizer:
    return Tokenizer.from_str(train_tokenizer(["abcd efgh ijkl " * 50], "byte_bpe", IDS).to_json())


def added(tmp_path: Path, text: str | bytes, tokenizer: Tokenizer | None = None) -> tuple[GrownTokenizer, list[str]]:
    file, said = tmp_path / "new.txt", list[str]()
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return add_tokens(tokenizer or former(), file, said.append), said


def test_tokens_are_those_of_transformers_add_tokens(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    lines = [" lymphoma", "lymph", " caf\u00e9", "\u4e2d\u6587", "a b", '{"x', " tail  "]
    text = "\ufeff" + "\r\n".join([*lines, "", json.dumps(TOOL), ""])
    grown, said = added(tmp_path, text)
    assert not said
    assert [token.content for token in grown.tokens] == [*lines, "<|tool|>"]
    assert grown.first_id == IDS
    theirs = PreTrainedTokenizerFast(tokenizer_object=former())
    theirs.add_tokens([*lines, AddedToken("<|tool|>", special=True)])
    for sample in (*lines, "a lymphoma lymphomas lymph caf\u00e9", '\u4e2d\u6587a b<|tool|> tail  {"x lymph\u4e2d'):
        assert grown.tokenizer.encode(sample).ids == theirs(sample)["input_ids"]
    assert grown.tokenizer.encode("a lymphoma").ids[-1] == IDS, "the longest of tokens that begin alike"
    assert grown.pieces[1] == tuple(former().encode("lymph").ids)


def test_tokens_that_are_there_are_left_out(tmp_path: Path) -> None:
    grown, said = added(tmp_path, " ij\nnew\n</s>\na\n")
    assert [token.content for token in grown.tokens] == ["new"]
    assert "3 tokens of" in said[0]
    assert "' ij', '</s>', 'a'" in said[0]


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "nothing": ("\n\r\n", "is empty"),
    "no text": (b"\xff\xfe", "is no text in UTF-8"),
    "a repeated token": ("new\nother\nnew\n", "line 3: 'new' is in line 1 too"),
    "white space": ("new\n  \n", "line 2: '  ' is white space alone"),
    "known tokens alone": ("a\n ij\n", "has no token that the tokenizer lacks"),
    "a name of other bytes": ("\u00c4\n", "is the name of piece"),
    "a token that is decoded as bytes": ("caf\u00e9\n", "as a token is decoded as 'caf\ufffd'"),
    "an unknown field": ('{"content": "x y", "id": 7}\n', "a token in JSON has content"),
    "half of a surrogate pair": ('{"content": "\\ud800x"}\n', "has half of a surrogate pair"),
    "a number for a flag": ('{"content": "x y", "special": 1}\n', "a token in JSON has content"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_files_without_new_tokens_are_refused(case: str, tmp_path: Path) -> None:
    text, message = REFUSED[case]
    with pytest.raises(ConfigError) as error:
        added(tmp_path, text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def _uncased(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def test_two_spellings_that_the_tokenizer_reads_alike_are_refused(tmp_path: Path) -> None:
    tokenizer = _uncased({"[UNK]": 0, "a": 1})
    with pytest.raises(ConfigError, match=r"the tokenizer makes \['.oo'\] of '.oo' even when that is a token"):
        added(tmp_path, "Foo\nfoo\n", tokenizer)


def test_unknown_pieces_are_none(tmp_path: Path) -> None:
    grown, _ = added(tmp_path, "xyz\na xyz\n", _uncased({"[UNK]": 0, "a": 1}))
    assert grown.pieces == ((), (1,))


def test_ids_with_gaps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="would be id 2, where 8 is the next one"):
        added(tmp_path, "new\n", _uncased({"[UNK]": 0, "a": 7}))


def test_more_ids_than_any_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than the 4,194,304 ids"):
        added(tmp_path, "new\nother\n", _uncased({"[UNK]": 0, "a": 2**22 - 2}))


def test_new_pieces_of_a_trained_tokenizer_are_added(tmp_path: Path) -> None:
    train_byte_bpe([" w\u00f6rter lymphoma lymphatic \u4e2d\u6587" * 50], 286).save(tmp_path / "tokenizer.json")
    said = list[str]()
    grown = add_tokens(former(), tmp_path / "tokenizer.json", said.append)
    contents = [token.content for token in grown.tokens]
    assert {" w\u00f6rter", " lymph", " \u4e2d\u6587"} <= set(contents)
    assert not any(content[0].isascii() and content[0].isalpha() for content in contents)
    assert "continue a word, and are not added" in said[0]
    assert grown.tokenizer.encode("ein w\u00f6rter").tokens[-1] == " w\u00f6rter"


def test_a_normalizer_that_prepends_a_space_does_it_for_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE({"<unk>": 0, "\u2581": 1, "a": 2, "b": 3}, [], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    train_byte_bpe([" abba" * 50], 265).save(tmp_path / "tokenizer.json")
    grown = add_tokens(tokenizer, tmp_path / "tokenizer.json", lambda line: None)
    assert "abba" in [token.content for token in grown.tokens]
    found = grown.tokenizer.encode("a abba").ids
    assert found == [1, 2, grown.tokenizer.token_to_id("abba")]
