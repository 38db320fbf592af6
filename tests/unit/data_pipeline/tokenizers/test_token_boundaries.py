"""Boundaries of words and sentences in tokens, which are those of the text that they spell."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.tokenizers.characters import CharacterTokenizer
from data_pipeline.tokenizers.load import load_tokenizer
from data_pipeline.tokenizers.token_boundaries import TokenBoundaries
from data_pipeline.writing.boundaries import Boundaries
from tests.unit.data_pipeline.writing.test_boundaries import WRITTEN

TEXT = (
    'He said "It is 3.5." Why?! (No.)\n请联系我们。「你好！」OK!然后 ABC，１．５元 人々のカード ฉันรักก็ यह है। '
    "نعم؟ می\u200cروم 가요. "
)


def _cut(text: bytes, random: np.random.Generator, at_characters: bool) -> list[bytes]:
    """The bytes in pieces of one to eight, of whole characters or not."""
    places = np.cumsum(random.integers(1, 9, len(text)))
    places = places[places < len(text)]
    if at_characters:
        places = np.array([place for place in places if text[place] & 0xC0 != 0x80], np.int64)
    return [text[begin:end] for begin, end in pairwise([0, *places.tolist(), len(text)])]


@pytest.mark.parametrize("at_characters", [True, False])
def test_boundaries_do_not_depend_on_how_a_text_is_cut(at_characters: bool) -> None:
    random = np.random.default_rng(0)
    words = [word for word in TEXT.split(" ") if not (at_characters and "．" in word)]  # which needs what follows
    for _ in range(60):
        text = " ".join(random.permutation(words))
        pieces = _cut(text.encode(), random, at_characters)
        ids = np.arange(len(pieces))
        expected = Boundaries.of(np.array([ord(character) for character in text]))
        begin_of = np.cumsum([0, *(len(character.encode()) for character in text)])
        token_of = np.repeat(ids, [len(piece) for piece in pieces])
        begins, ends = np.zeros((2, len(pieces)), np.bool_)
        starts = np.cumsum([0, *map(len, pieces)])[:-1]
        for number, (first, end) in enumerate(pairwise(begin_of.tolist())):
            if first in starts and expected.begins_word[number]:
                begins[token_of[first]] = True
            ends[token_of[end - 1]] |= expected.ends_sentence[number]
        found = TokenBoundaries(pieces)
        assert found.begins.by_characters(ids).tolist() == begins.tolist()
        assert found.begins_word(ids).tolist() == begins.tolist(), "by what tokens say"
        assert found.ends.by_characters(ids).tolist() == ends.tolist()
        assert found.ends_sentence(ids).tolist() == ends.tolist(), "by what tokens say"


@pytest.mark.parametrize("at_characters", [True, False])
def test_what_tokens_say_is_what_all_characters_say(at_characters: bool) -> None:
    """Rows of parts of texts in any writing, which may begin and end within characters, between special tokens."""
    random, texts = np.random.default_rng(0), [text.replace("|", "").replace("‖", "") for text in WRITTEN.values()]
    pieces, rows = [b""], list[np.ndarray]()
    for _ in range(40):
        row = [0]
        for text in random.permutation([*texts, TEXT, "a.\n \n b \n\n  \n" * 4])[:4]:
            begin, count = random.integers(len(text) // 2), random.integers(4, 40)
            part = text[begin:][:count].encode()
            parts = _cut(part if at_characters else part[1:-1], random, at_characters)
            row += [*range(len(pieces), len(pieces) + len(parts)), 0]
            pieces += parts
        rows.append(np.array(row[int(random.integers(2)) :]))
    number_of = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    vocabulary, number = list(number_of), np.array([number_of[piece] for piece in pieces])
    rows = [number[row] for row in rows]
    if at_characters:  # any order of these is a text
        rows += [random.integers(len(vocabulary), size=40) for _ in range(100)]
    found, asked = TokenBoundaries(vocabulary), TokenBoundaries(vocabulary)
    for ids in rows:
        assert found.ends_sentence(ids).tolist() == asked.ends.by_characters(ids).tolist()
        assert found.begins_word(ids).tolist() == asked.begins.by_characters(ids).tolist()


def test_special_tokens_are_between_words_and_behind_sentences() -> None:
    found = TokenBoundaries([b"", b"a", "中".encode(), b"b.", b")"])
    assert found.begins_word(np.array([1, 0, 1, 4, 1])).tolist() == [False, True, True, False, False]
    assert found.begins_word(np.array([2, 4, 1])).tolist() == [True, False, True], "behind the bracket of a word"
    assert found.ends_sentence(np.array([3, 4, 0, 3, 1])).tolist() == [False, True, False, False, False]
    cut = TokenBoundaries(["中".encode()[:2], "中".encode()[2:], b"a"])
    assert cut.begins_word(np.array([1, 0, 1, 2])).tolist() == [False, True, False, True], "a row may begin within one"
    cut = TokenBoundaries([b"", "ж".encode()[1:] + b"a", b"b"])
    assert cut.begins_word(np.array([0, 1, 2])).tolist() == [True, False, False], "so may what a special token precedes"


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "bpe", "bytes"])
def test_pieces_spell_a_text_in_bytes(tokenizer_files: dict[str, Path], kind: str) -> None:
    tokenizer = load_tokenizer(tokenizer_files[kind])
    pieces = tokenizer.piece_bytes()
    assert b"".join(pieces[index] for index in tokenizer.encode(TEXT)) == TEXT.encode()
    assert pieces[tokenizer.end_of_text] == b""


def test_characters_are_their_own_bytes() -> None:
    pieces = CharacterTokenizer().piece_bytes()
    assert (pieces[ord("中")], pieces[CharacterTokenizer.end_of_text], len(pieces)) == ("中".encode(), b"", 0x110000)
