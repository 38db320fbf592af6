"""Characters and white space are repaired, and nothing else is touched."""

from __future__ import annotations

import json
import random
import re
import textwrap
import unicodedata
from collections import Counter
from pathlib import Path

import ftfy
import pytest
from ftfy.badness import MOJIBAKE_CATEGORIES, is_bad

from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.repair import _MOJIBAKE_NEEDS, Repair, _readable
from data_pipeline.text.wrapping import unwrap
from tests.helpers.many_languages import ARTICLE
from tests.helpers.steps import run_local


@pytest.mark.parametrize(
    ("broken", "good", "kind"),
    [
        ("cafÃ© au lait", "café au lait", "mojibake"),
        ("he said â€œnoâ€\x9d", "he said “no”", "mojibake"),
        ("one\r\ntwo\rthree\u2028four", "one\ntwo\nthree\nfour", "line ends"),
        ("a\x00b\u200bc\ufeffd\u202ee\x07", "abcde", "unseen characters"),
        ("cafe\u0301", "café", "normal form"),
        ("one  two\t\tthree\u00a0four  \n  five", "one two three four\nfive", "white space"),
        ("one\n\n\n\ntwo\n\n", "one\n\ntwo", "white space"),
        ("half \ud83d of one, \ud83d\ude00 whole", "half of one, 😀 whole", "surrogates"),
    ],
)
def test_each_repair_does_its_part_and_is_counted(tmp_path: Path, broken: str, good: str, kind: str) -> None:
    texts, stats = run_local(Repair(), [broken], tmp_path)
    assert texts == [good]
    assert stats.changed[kind] == 1


def test_good_text_goes_through_as_it_is(tmp_path: Path) -> None:
    good = ["Plain text.\n\nOf two paragraphs.", "Ça va, Zoë? 中文 русский", "می‌خواهم", "👩‍👩‍👧 naïve œuvre"]
    texts, stats = run_local(Repair(), good, tmp_path)
    assert texts == good
    assert not stats.changed


@pytest.mark.parametrize(
    "text",
    [
        "می\u200cخواهم کتاب\u200cها",
        "USB\u200cها را، سه PDF\u200cی دیگر، 20\u200cساله",  # Latin and digits beside Persian
        "۱۴۰۰ ه\u200d.ش و ه\u200d",  # a letter's initial form
        "क्\u200d क्\u200dष र्\u200dय श्री\u0964 ट्\u200c.",  # behind a virama, at a word's end too
        "ম্\u200d, র\u200d্যাম",
        "ශ්\u200dරී ලංකා",
        "ಎಂಜಿನಿಯರ್\u200c ಸಾಫ್ಟ್\u200cವೇರ್",
        "ᠨᠠᠢᠮ\u180eᠠ",
        "👩\u200d👩\u200d👧 ❤\ufe0f\u200d🔥",
    ],
)
def test_joiners_that_spell_words_stay(text: str) -> None:
    assert Repair().repair(text, changed := Counter()) == text
    assert not changed


@pytest.mark.parametrize(
    ("given", "letters"),
    [
        ("അവന്\u200d ന്\u200dറെ", "അവൻ ൻറെ"),
        ("ര്\u200d ല്\u200d. ള്\u200d ണ്\u200d, ക്\u200d", "ർ ൽ. ൾ ൺ, ൿ"),
        ("ഹൈഫന്\u200d\u200d", "ഹൈഫൻ"),
        ("হঠাত্\u200d সত্\u200dকার", "হঠাৎ সৎকার"),
    ],
)
def test_joiners_become_the_letters_that_unicode_has_for_them(given: str, letters: str) -> None:
    assert Repair().repair(given, Counter()) == letters
    assert Repair().repair(letters, Counter()) == letters


@pytest.mark.parametrize(
    ("given", "good"),
    [
        ("a\u200cb \u200dc", "ab c"),
        ("کتاب\u200c ها\u200c. \u200cو", "کتاب ها. و"),
        ("می\u200c\u200cخواهم", "می\u200cخواهم"),
        ("中\u200d, 日\u200c x\u180ey ᠮ\u180e ", "中, 日 xy ᠮ"),
    ],
)
def test_joiners_that_spell_nothing_are_left_overs(given: str, good: str) -> None:
    assert Repair().repair(given, Counter()) == good


@pytest.mark.parametrize(
    ("given", "good"),
    [
        ("មនុស្ស\u200bទាំងអស់\u200b\u200bកើត", "មនុស្ស\u200bទាំងអស់\u200bកើត"),
        ("ภาษา\u200bไทย \u200bนี้\u200b ก็\u200b.", "ภาษา\u200bไทย นี้ ก็."),
        ("long\u200bword, 中\u200b文, ភាសា\u200bOK", "longword, 中文, ភាសាOK"),
    ],
)
def test_spaces_of_no_width_stay_between_letters_that_they_part(given: str, good: str) -> None:
    assert Repair().repair(given, Counter()) == good
    assert Repair().repair(good, changed := Counter()) == good
    assert not changed


def test_a_build_with_other_joiners_is_another() -> None:
    assert Repair().version_of_settings() == 3


def test_documents_without_text_are_dropped_with_a_sample_that_can_be_written(tmp_path: Path) -> None:
    texts, stats = run_local(Repair(), ["\u200b \n\t", "\ud800", "x"], tmp_path)
    assert texts == ["x"]
    assert stats.dropped == Counter(empty=2)
    json.dumps(stats.to_dict()).encode()
    assert not stats.changed


def test_settings_turn_repairs_off(tmp_path: Path) -> None:
    loose = Repair(mojibake=False, normal_form="none", indentation=True, blank_lines=3)
    text = "cafÃ©\n\n\n\n    e\u0301 x"
    assert run_local(loose, [text + "  "], tmp_path)[0] == [text]
    assert run_local(Repair(normal_form="nfkc"), ["ﬁne x²"], tmp_path)[0] == ["fine x2"]


def test_both_texts_of_a_pair_are_repaired(tmp_path: Path) -> None:
    stats = StepStats()
    pairs = [Document(("a  b", "c\r\nd"), "f", 0), Document(("a", " "), "f", 1)]
    assert [d.texts for d in Repair().run(pairs, stats, tmp_path)] == [("a b", "c\nd")]
    assert stats.dropped == Counter(empty=1)


def _mojibake_like(seed: int, lines: int) -> list[str]:
    """Lines of the characters that ftfy looks at, of ASCII, and of good text read in a wrong encoding."""
    random_ = random.Random(seed)
    signs = [c for c in map(chr, range(0x80, 0x2600)) if ftfy.badness.BADNESS_RE.search(c + "¤") or is_bad("¤" + c)]
    signs += sorted(set("".join(MOJIBAKE_CATEGORIES.values())) - {"-"})
    found = []
    for _ in range(lines):
        found.append(
            "".join(random_.choice(random_.choice(["az AZ.,", signs])) for _ in range(random_.randrange(1, 7)))
        )
        good = "".join(random_.choice("aéß “”—œÂ€ñжЖλ中😀 ") for _ in range(random_.randrange(1, 12)))
        found.append(good.encode().decode(random_.choice(["latin-1", "cp437", "macroman"])))
        found.append(good)
    return found


def test_mojibake_is_looked_for_wherever_ftfy_would_find_it() -> None:
    lines = _mojibake_like(0, 6_000)
    bad = [line for line in lines if is_bad(line)]
    assert len(bad) > 3_000
    assert all(_MOJIBAKE_NEEDS.search(line) for line in bad)
    assert [_readable(line) for line in lines[:3000]] == [ftfy.fix_encoding(line) for line in lines[:3000]]


def test_single_characters_beside_ascii_that_ftfy_takes_for_signs_are_all_known() -> None:
    for code in [*range(0x80, 0xD800), *range(0xE000, 0x10000)]:
        for line in (chr(code), f"a{chr(code)} b", f"{chr(code)} ", f"A {chr(code)}1"):
            assert _MOJIBAKE_NEEDS.search(line) or not is_bad(line), hex(code)


def test_repaired_text_stays_as_it_is(tmp_path: Path) -> None:
    random_ = random.Random(1)
    alphabet = "ab \n\t\r\u00a0\u200b\u200c\u200d\u0301é\u2028\x85\x1f中\ud800\u1100\u1161നത\u0d4d\u09cd\u093cهاᠮ\u180e"
    for form in ("nfc", "nfkc", "none"):
        step = Repair(mojibake=False, normal_form=form)
        texts = ["".join(random_.choices(alphabet, k=20)) for _ in range(500)]
        once = run_local(step, texts, tmp_path)[0]
        assert run_local(step, once, tmp_path)[0] == once
        if form == "nfc":
            assert all(unicodedata.is_normalized("NFC", text) for text in once)


PROSE = (
    "The harbour had been quiet for a week when the first of the grain ships came in from the north, and "
    "nobody on the quay could say who had sent it. By noon there were three of them, riding high in the water, "
    "with their crews leaning over the rails and calling to the children. A customs officer went out in a small "
    "boat and came back shaking his head."
)


@pytest.mark.parametrize("width", [44, 65, 72, 80, 96])
def test_wrapped_text_comes_back_as_paragraphs(width: int) -> None:
    paragraphs = [PROSE, PROSE[60:], PROSE[:250]]
    for text in (
        "\n\n".join(textwrap.fill(one, width) for one in paragraphs),
        "\n".join(textwrap.fill(one, width, initial_indent="    ") for one in paragraphs),
    ):
        repaired = Repair(unwrap=True).repair(text, Counter())
        assert re.split(r"\n+", repaired) == [" ".join(one.split()) for one in paragraphs]
        assert Repair().repair(text, Counter()).count("\n") > 7


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        "\n\n".join([PROSE, PROSE[40:]]),
        "\n".join(f"- item number {n} of a list that is as long as others are, all of them" for n in range(9)),
        "\n".join(f"Line {n} of a poem that begins each of its many lines with a capital" for n in range(12)),
        "\n".join(f"    value_{n} = compute(first_{n}, second_{n})\n    return value_{n}" for n in range(9)),
        "Yours\nsincerely\nthe\nboard",
        "",
    ],
)
def test_text_that_was_not_wrapped_keeps_its_lines(text: str) -> None:
    assert unwrap(text) == text


def test_unwrapping_is_off_and_then_no_part_of_a_build_s_settings() -> None:
    assert "unwrap" not in Repair().model_dump()
    assert Repair(unwrap=True).model_dump()["unwrap"]


@pytest.mark.parametrize("language", ["en", "de", "vi", "ru", "ar", "fa", "hi", "zh", "ja", "ko"])
def test_text_that_was_wrapped_is_unwrapped_in_any_script(language: str) -> None:
    """Without case, sentences that continue show it; Chinese and Japanese are wrapped anywhere, at columns of two."""
    text = (ARTICLE[language] + ("" if language in ("zh", "ja") else " ")) * 4
    lines = [""]
    for piece in text if language in ("zh", "ja") else text.split():
        space = "" if language in ("zh", "ja") or not lines[-1] else " "
        if display_width(lines[-1] + space + piece) > 60 and piece not in "、。,":
            lines.append(piece)
        else:
            lines[-1] += space + piece
    assert len(lines) > 4
    assert unwrap("\n".join(lines)) == text.strip()
    assert unwrap("\n".join(ARTICLE.values())) == "\n".join(ARTICLE.values()), "sentences a line each"


def display_width(text: str) -> int:
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)
