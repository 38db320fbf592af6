"""What counts as equal in texts of any language, a table of languages."""

import unicodedata

import pytest

from data_pipeline.writing.folding import folded, is_unspaced, one_form, spaced, unspaced_letters

EQUAL = [
    ("en", "The\u00a0Cat, 1,000!", "the cat 1000"),
    ("de", "Straße", "STRASSE"),
    ("vi", "Việt Nam", unicodedata.normalize("NFD", "VIỆT NAM.")),
    ("tr", "İstanbul", "istanbul"),
    ("ru", "«Москва» 1\u202f000\u202f000", "москва 1000000"),
    ("ar", "الرياض، ١٬٢٣٤؟", "الرياض 1234"),
    ("fa", "۱۲۳ می\u200cخواهم", "\u200f123 می\u200cخواهم\u200e"),
    ("hi", "दिल्ली।१२", "दिल्ली12"),
    ("ml", "അവൻ", "അവന\u0d4d\u200d"),
    ("th", "กรุงเทพ ๑๒", "กรุงเทพ12"),
    ("zh", "「北京」，１２３Ａ。", "北京123a"),
    ("ja", "ｶﾞｲﾄﾞ・ブック", "ガイドブック"),
    ("ko", unicodedata.normalize("NFD", "서울,"), "서울"),
    ("am", "ሰላም፡ዓለም", "ሰላም ዓለም"),
]
APART = [
    ("hi", "में", "मैं"),
    ("th", "กา", "กำ"),
    ("vi", "ma", "má"),
    ("de", "schön", "schon"),
    ("ja", "か", "が"),
    ("tr", "kır", "kir"),
    ("fa", "می\u200cخواهم", "میخواهم"),
]


@pytest.mark.parametrize(("language", "one", "other"), EQUAL)
def test_width_digits_case_and_punctuation_of_every_script_do_not_count(language: str, one: str, other: str) -> None:
    assert folded(one) == folded(other)
    assert folded(folded(one)) == folded(one)


@pytest.mark.parametrize(("language", "one", "other"), APART)
def test_words_that_differ_in_their_letters_or_marks_stay_apart(language: str, one: str, other: str) -> None:
    assert folded(one) != folded(other)


def test_turkish_has_two_letters_i() -> None:
    assert [folded(word, dotless=True) for word in ("ISPARTA", "ısparta", "İZMİR", "I\u0307ZMI\u0307R")] == [
        *["ısparta"] * 2,
        *["izmir"] * 2,
    ]
    assert folded("ISPARTA") != folded("ısparta"), "which no rule for all languages can know"


def test_each_letter_of_a_script_without_spaces_is_a_word_with_its_marks() -> None:
    assert spaced("我爱Python编程。").split() == ["我", "爱", "Python", "编", "程", "。"]
    assert spaced("นี้ดี").split() == ["นี้", "ดี"]
    assert spaced("데이터 과학") == "데이터 과학"
    assert [is_unspaced(text) for text in ("日本", "ไทย", "한국", "हिन्दी", "abc", "、")] == [True, True, *[False] * 4]
    assert unspaced_letters("ab 日本ー") == (2, 4)


def test_one_form_changes_width_and_digits_alone() -> None:
    assert one_form("（Ａ）１２３ ٤٢٫٥ १२ The 10%") == "(A)123 42.5 12 The 10%"
    assert one_form("x² Straße") == "x² Straße"
    assert one_form("ﾊﾟ cafe\u0301") == "パ café"
