"""A table of languages and of what looks at their characters. The right values are those of the field's own code: ICU's
break iterators, as recorded here and by themselves where icu4py is installed, and transformers' BERT in Python."""

from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import regex

from data_pipeline.recipes.characters import CharacterSpans
from data_pipeline.recipes.masked import Masked
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.characters import CharacterTokenizer
from data_pipeline.tokenizers.load import train_tokenizer
from data_pipeline.writing.boundaries import Boundaries

# ‖ where ICU 78's SentenceBreaker breaks a text, and the words that its WordBreaker finds: letters and digits; those of
# scripts without spaces by its CharacterBreaker, a word for each.
WRITTEN = {
    "en": ('He said "It is 3.5." ‖Don\'t go! ‖Why?', "He said It is 3.5 Don't go Why"),
    "de": ("Größe: 3,5 m. ‖„Schön“, sagte er. ‖Ja!", "Größe 3,5 m Schön sagte er Ja"),
    "vi": ("Tôi là ai? ‖Tiếng Việt có dấu. ‖Không!", "Tôi là ai Tiếng Việt có dấu Không"),
    "tr": ("İyi günler. ‖Iğdır nasıl? ‖Çok güzel!", "İyi günler Iğdır nasıl Çok güzel"),
    "ru": ("Это «да». ‖Всё ещё нет! ‖Почему?", "Это да Всё ещё нет Почему"),
    "ar": ("هل أنت بخير؟ ‖نعم. ‖اسمه ١٢٣.", "هل أنت بخير نعم اسمه ١٢٣"),
    "fa": ("می\u200cروم. ‖خوبی؟ ‖کتاب\u200cها را خواندم!", "می\u200cروم خوبی کتاب\u200cها را خواندم"),
    "hi": ("यह मैं है। ‖वह नहीं था। ‖क्या? ‖१२३ रुपये।", "यह मैं है वह नहीं था क्या १२३ रुपये"),
    "ml": ("അവന്\u200d വന്നു. ‖ഇത് ശരി? ‖അതെ!", "അവന്\u200d വന്നു ഇത് ശരി അതെ"),
    "th": ("ฉันมาที่นี่ เขาไปแล้วครับ น้ำ", "ฉั น ม า ที่ นี่ เ ข า ไ ป แ ล้ ว ค รั บ น้ำ"),
    "zh": ("我们走。‖他说「你好！」‖１２．５元吗？‖好", "我 们 走 他 说 你 好 １２．５ 元 吗 好"),
    "ja": ("ガラスは１２個です。‖カラスも！‖本当？‖はい", "ガ ラ ス は １２ 個 で す カ ラ ス も 本 当 は い"),
    "ko": ("안녕하세요. ‖한국어입니다! ‖정말요?", "안녕하세요 한국어입니다 정말요"),
}
UNSPACED = ("th", "zh", "ja")
SPELLING = ("bpe", "byte_bpe", "unigram", "bytes", "characters")
"""kinds of tokenizers that give back what they are given"""
Kind = Literal["wordpiece", "bpe", "byte_bpe", "unigram", "bytes", "characters"]


def _text(language: str) -> str:
    return WRITTEN[language][0].replace("‖", "")


@cache
def _tokenizer(kind: Kind, **settings: Any) -> Tokenizer:
    """One of all these languages: a wordpiece has each character, alone and within words."""
    size = {"wordpiece": 440, "bpe": 480, "byte_bpe": 300, "unigram": 450}.get(kind, 0)
    return train_tokenizer([_text(language) for language in WRITTEN] * 2, kind, size, **settings)


def _parts(text: str, begins: Iterable[int]) -> list[str]:
    places = sorted({0, *begins, len(text)})
    return [text[first:end] for first, end in pairwise(places)]


def _words(parts: list[str]) -> list[str]:
    """What of each is written in letters and digits."""
    bare = [regex.sub(r"^[^\p{L}\p{M}\p{N}]+|[^\p{L}\p{M}\p{N}\u200c\u200d]+$", "", part) for part in parts]
    return [word for word in bare if word]


@pytest.mark.parametrize("language", WRITTEN)
def test_sentences_and_words_are_those_of_icu(language: str) -> None:
    text = _text(language)
    found = Boundaries.of(np.array([*map(ord, text)]))
    sentences = _parts(text, np.flatnonzero(found.ends_sentence) + 1)
    assert [one.strip() for one in sentences] == [one.strip() for one in WRITTEN[language][0].split("‖")]
    assert _words(_parts(text, np.flatnonzero(found.begins_word))) == WRITTEN[language][1].split(" ")


@pytest.mark.parametrize("language", WRITTEN)
def test_icu_says_so(language: str) -> None:
    breakers = pytest.importorskip(
        "icu4py.breakers", reason="ICU's values are recorded here; icu4py would confirm them"
    )

    def parts(breaker: Callable[[str, str], Any], text: str) -> list[str]:
        return [text[first:end] for first, end in breaker(text, language).segments()]

    text = _text(language)
    assert "‖".join(parts(breakers.SentenceBreaker, text)) == WRITTEN[language][0]
    words = _words(parts(breakers.WordBreaker, text))
    if language in UNSPACED:
        clusters = [parts(breakers.CharacterBreaker, word) for word in words]
        words = [part for word in clusters for part in (["".join(word)] if regex.match(r"\p{N}", word[0]) else word)]
    assert words == WRITTEN[language][1].split(" ")


@pytest.mark.parametrize("kind", SPELLING)
def test_texts_come_back_with_their_joiners_and_have_their_sentences(kind: Kind) -> None:
    tokenizer = _tokenizer(kind)
    known = Masked(next_sentence=True, boundaries="unicode").recipe(tokenizer, 64).known
    for language in WRITTEN:
        text = _text(language)
        ids = np.array(tokenizer.encode(text))
        assert tokenizer.decode(ids) == text
        assert not (ids == tokenizer.unknown).any()
        found = [tokenizer.decode(part).strip() for part in np.split(ids, known.sentence_ends(ids).nonzero()[0] + 1)]
        assert [part for part in found if part] == [one.strip() for one in WRITTEN[language][0].split("‖")], language


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
def test_a_wordpiece_has_bert_s_case_and_marks(lowercase: bool, strip_accents: bool, tmp_path: Path) -> None:
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    settings = {"lowercase": lowercase, "strip_accents": strip_accents}
    ours = _tokenizer("wordpiece", **settings)
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in _pieces(ours)), "utf-8")
    theirs = BertTokenizerLegacy(str(tmp_path / "vocab.txt"), do_lower_case=lowercase, strip_accents=strip_accents)
    for language in WRITTEN:
        ids = ours.encode(_text(language))
        assert theirs.convert_ids_to_tokens(ids) == theirs.tokenize(_text(language)), language
        assert ours.unknown not in ids


def _pieces(tokenizer: Tokenizer) -> list[str]:
    from tokenizers import Tokenizer as JsonTokenizer

    vocabulary = JsonTokenizer.from_str(tokenizer.to_json()).get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte_bpe", "unigram", "bytes"])
@pytest.mark.parametrize("language", WRITTEN)
def test_as_many_tokens_are_masked_as_were_asked_for(kind: Kind, language: str) -> None:
    tokenizer = _tokenizer(kind)
    row = np.array(tokenizer.encode(" ".join([_text(language)] * 8)))
    for ngrams in (1, 3):
        recipe = Masked(whole_words=True, ngrams=ngrams, boundaries="unicode").recipe(tokenizer, len(row) + 2)
        masking = recipe.masking(None, "train")  # type: ignore[arg-type]
        counts = [masking.masked(row, np.random.default_rng(seed))[1].sum() for seed in range(8)]
        assert np.mean(counts) / len(row) == pytest.approx(0.15, abs=0.02)
        assert max(counts) <= round(0.15 * len(row))


@pytest.mark.parametrize("language", WRITTEN)
def test_words_of_characters_are_those_of_icu(language: str) -> None:
    text = _text(language)
    recipe = CharacterSpans(boundaries="unicode").recipe(CharacterTokenizer(), 64)
    row = np.array([0xE000, *map(ord, text), 0xE001])
    starts, sizes = recipe._words(row, recipe.is_text(row), 64)
    words = ["".join(map(chr, row[first : first + size])) for first, size in zip(starts, sizes, strict=True)]
    assert _words(words) == WRITTEN[language][1].split(" ")
