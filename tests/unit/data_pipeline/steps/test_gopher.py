"""MassiveText's rules, against the same rules written down word by word in plain Python."""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps import gopher
from data_pipeline.steps.gopher import GopherQuality, GopherRepetition, repeated_grams, repeated_pieces
from data_pipeline.text.words import Words
from data_pipeline.writing.stop_words import STOP_WORDS
from tests.helpers.many_languages import ARTICLE
from tests.helpers.steps import documents_of, run_local

_TEXTS = Path(__file__).parents[5] / "shared/data/text"
_PROSE = "The fox, with all of its cunning, had to run and hide that day in the deep dark forest near us. "


def _naive(text: str, n: int) -> tuple[float, float]:
    """(top, repeated) n-grams' part of the characters, for ASCII words with punctuation only around them."""
    words = [word for word in (w.strip("'!,.-:;?&$3[]") for w in text.lower().split()) if word]
    total = max(1, sum(map(len, words)))
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    counts = Counter(grams)
    most = max(counts.values(), default=0)
    top = max((sum(map(len, gram)) * most for gram, count in counts.items() if count == most > 1), default=0)
    seen, covered = set(), set()
    for i, gram in enumerate(grams):
        if gram in seen:
            covered.update(range(i, i + n))
        seen.add(gram)
    return top / total, sum(len(words[i]) for i in covered) / total


def _compare(texts: list[str]) -> None:
    for grams in repeated_grams(Words.of(texts), 10):
        found = np.stack([grams.top, grams.repeated], axis=1)
        np.testing.assert_allclose(found, [_naive(text, grams.n) for text in texts], rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_repeated_grams_are_those_that_a_naive_count_finds_in_random_texts(seed: int) -> None:
    random_ = random.Random(seed)
    vocabulary = [random_.choice("abcde") * random_.randrange(1, 5) for _ in range(random_.choice([2, 5, 30]))]
    texts = [" ".join(random_.choices(vocabulary, k=random_.randrange(60))) for _ in range(60)]
    half = " ".join(random_.choices(vocabulary, k=40))
    _compare([*texts, "", "one", half + " " + half, ". , ."])


def test_repeated_grams_are_those_that_a_naive_count_finds_in_real_text() -> None:
    if not _TEXTS.exists():
        pytest.skip(f"no text to try it on in {_TEXTS}")
    text = (_TEXTS / "tinyshakespeare.txt").read_text()[:200_000]
    # What the naive count takes for words is what the step does when there is no punctuation inside them.
    text = re.sub(r"(?<=\w)[^\w\s]+(?=\w)", "", text)
    _compare([text[i : i + 5000] for i in range(0, len(text), 5000)])


def test_repeated_pieces_count_what_has_occurred_before() -> None:
    assert repeated_pieces(["ab", "cdef", " ab", "", "ab\t"]) == (2 / 4, 4 / 10)
    assert repeated_pieces(["", " "]) == (0, 0)


def _words(count: int) -> list[str]:
    return [f"{a}{b}" for a in "bcdfghjklm" for b in "aeiou"][:count]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n\n".join(["one two three"] * 2 + ["four five", "six seven"]), "characters in repeated paragraphs"),
        ("\n\n".join([*"abcab", "a long paragraph that is there once only, so few characters"]), "repeated paragraphs"),
        ("\n".join([*"abcab", "a long line that is there once only, so few characters"]), "repeated lines"),
        ("\n".join(["one two three"] * 2 + ["four five", "six seven"]), "characters in repeated lines"),
        (" ".join(f"hello world {word}" for word in _words(20)), "top 2-grams"),
        (
            " ".join(f"good day sir {a} {b}" for a, b in zip(_words(40)[:20], _words(40)[20:], strict=True)),
            "top 2-grams",
        ),
        (" ".join([*_words(50), *_words(10)]), "repeated 5-grams"),
        (" ".join(_words(50)), None),
    ],
)
def test_a_document_that_repeats_itself_is_dropped_with_the_reason(
    tmp_path: Path, text: str, reason: str | None
) -> None:
    texts, stats = run_local(GopherRepetition(), [text], tmp_path)
    assert stats.dropped == (Counter([reason]) if reason else Counter())
    assert len(texts) == (reason is None)


def test_each_length_of_grams_has_its_own_limit(tmp_path: Path) -> None:
    words = _words(50)
    twice = " ".join([*words, *words[:8]])  # 8 of 58 words, 13.8% of the characters, are repeated
    for n, reason in ((5, None), (7, "repeated 7-grams"), (8, "repeated 8-grams"), (9, None)):
        step = GopherRepetition(max_repeated_grams={n: GopherRepetition().max_repeated_grams[n]})
        assert run_local(step, [twice], tmp_path)[1].dropped == (Counter([reason]) if reason else Counter())
    none = GopherRepetition(
        max_lines=None,
        max_paragraphs=None,
        max_line_characters=None,
        max_paragraph_characters=None,
        max_top_grams={},
        max_repeated_grams={},
    )
    assert run_local(none, ["a\n\na\n\na b c a b c"], tmp_path)[0]


def test_the_order_and_the_verdicts_do_not_depend_on_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(0)
    texts = [
        " ".join(random_.choices(_words(random_.choice([8, 50])), k=random_.randrange(20, 90))) for _ in range(200)
    ]
    together, stats = run_local(GopherRepetition(), texts, tmp_path)
    monkeypatch.setattr(gopher, "_BATCH_CHARACTERS", 1)
    alone, alone_tally = run_local(GopherRepetition(), texts, tmp_path)
    assert 5 < len(together) < 195
    assert together == alone
    assert stats == alone_tally


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (_PROSE * 3, None),
        (_PROSE * 2, "few words"),
        ("", "few words"),
        ("a b to " * 50, "short words"),
        ("the and incomprehensibilities reconstructively " * 50, "long words"),
        (_PROSE * 3 + " # # # # # # # #", "hash signs"),
        ((_PROSE + " well... so… ") * 4 + "… " * 8, "ellipses"),
        ("\n".join("- " + _PROSE for _ in range(4)), "bullet lines"),
        ("\n".join([_PROSE + "more..."] * 2 + [_PROSE] * 3), "ellipsis lines"),
        (_PROSE * 3 + " 1234" * 20, "words without letters"),
        ("some words are here but none of those which prose holds ".replace(" of", " by") * 6, "few stop words"),
        ("The fox And the dog saw us here today, " * 8, None),
    ],
)
def test_what_does_not_look_like_prose_is_dropped_with_the_reason(
    tmp_path: Path, text: str, reason: str | None
) -> None:
    texts, stats = run_local(GopherQuality(), [text], tmp_path)
    assert stats.dropped == (Counter([reason]) if reason else Counter())
    assert texts == ([] if reason else [text])


def test_limits_themselves_are_allowed(tmp_path: Path) -> None:
    words = ["the", "and", *(["word"] * 48)]
    assert run_local(GopherQuality(), [" ".join(words)], tmp_path)[0]
    assert not run_local(GopherQuality(), [" ".join(words[:-1])], tmp_path)[0]
    tenth = [*(["the", "and"] * 45), *["#"] * 10]
    assert run_local(GopherQuality(min_word_characters=1), [" ".join(tenth)], tmp_path)[0]
    assert not run_local(GopherQuality(min_word_characters=1), [" ".join([*tenth, "#", "#"])], tmp_path)[0]


def test_documents_stream(tmp_path: Path) -> None:
    """A batch is handed on before the whole input is read."""
    seen = []

    def documents():
        for document in documents_of([" ".join(_words(50)) * 200] * 100):
            seen.append(document)
            yield document

    next(
        iter(
            GopherRepetition(max_lines=None, max_repeated_grams={}, max_top_grams={}).run(
                documents(), StepStats(), tmp_path
            )
        )
    )
    assert 0 < len(seen) < 50


# Two articles' worth: the rules that count words see the same number of them in every language.
_LANGUAGES = sorted(set(ARTICLE) & set(STOP_WORDS))


@pytest.mark.parametrize("language", _LANGUAGES)
def test_prose_of_any_language_is_prose(tmp_path: Path, language: str) -> None:
    """Words of Malayalam were too long, those of Korean too short, and a text in Thai or Chinese was a word."""
    stop_words = 0 if language == "ml" else 2  # this article has few words in Malayalam, and none of those
    step = GopherQuality(min_words=10, max_words=60, language=language, min_stop_words=stop_words)
    for form in ("NFC", "NFD"):
        text = unicodedata.normalize(form, ARTICLE[language])
        assert run_local(step, [text, text.upper()], tmp_path)[0] == [text, text.upper()]
        assert run_local(GopherRepetition(), [text], tmp_path)[0] == [text]


@pytest.mark.parametrize("language", ["ru", "ar", "hi", "th", "zh", "ja", "ko"])
def test_text_in_another_script_than_the_stop_words_is_dropped_as_that(tmp_path: Path, language: str) -> None:
    step = GopherQuality(min_words=10, language="de")
    assert run_local(step, [ARTICLE[language]], tmp_path)[1].dropped == {"another script than the stop words": 1}
    assert run_local(step, [ARTICLE["tr"]], tmp_path)[1].dropped == {"few stop words": 1}


def test_stop_words_of_an_unknown_language_have_to_be_given(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there are no stop words for language=xx, but for en, ar, .*give stop_words"):
        GopherQuality(language="xx")
    step = GopherQuality(min_words=10, language="xx", stop_words=["གི", "ཀྱང"])
    assert run_local(step, [ARTICLE["bo"]], tmp_path)[0]
    assert GopherQuality().version_of_settings() == GopherRepetition().version_of_settings() == 2


@pytest.mark.parametrize("language", ["zh", "ja", "th", "km", "my"])
def test_runs_of_words_have_their_letters_in_scripts_without_spaces(tmp_path: Path, language: str) -> None:
    """Half of a text is repeated."""
    text = ARTICLE[language]
    half = text + text[: len(text) // 2]
    ((reason, _),) = run_local(GopherRepetition(), [half], tmp_path)[1].dropped.items()
    assert reason in ("top 3-grams", "top 4-grams", "repeated 5-grams")


def test_lists_and_ellipses_of_east_asia_are_seen(tmp_path: Path) -> None:
    step = GopherQuality(min_words=1, language="zh")
    lines = {
        "bullet lines": "・人人生而自由的是，在尊严和权利上一律平等\n" * 4,
        "ellipsis lines": "人人生而自由，在尊严和权利上一律平等的是……\n" * 4 + "平等。",
    }
    for reason, text in lines.items():
        assert run_local(step, [text], tmp_path)[1].dropped == {reason: 1}
