"""Notices, menus and repeated heads and feet of web pages go; text stays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from data_pipeline.steps.boilerplate import Boilerplate
from tests.helpers.many_languages import ARTICLE
from tests.helpers.steps import run_local

_TEXT = "This is a line of text.\nIt is followed by another line\n\nand by a third one, after a blank line."


@pytest.mark.parametrize(
    "line",
    [
        "We use cookies to make this page better.",
        "This website uses cookies, as you know.",
        "Accept all cookies",
        "Skip to main content",
        "Log in",
        "Sign in or register",
        "Share this article on Facebook",
        "Tweet",
        "Read more »",
        "© 2019 The Company Ltd.",
        "Copyright (c) 2004-2008 Some One",
        "Some Company, 2007. All rights reserved.",
    ],
)
def test_notices_go(tmp_path: Path, line: str) -> None:
    texts, stats = run_local(Boilerplate(), [f"{_TEXT}\n{line}\n\nThe end of it."], tmp_path)
    assert texts == [f"{_TEXT}\n\nThe end of it."]
    assert stats.changed == Counter(notices=1)


@pytest.mark.parametrize(
    "line",
    [
        "She baked cookies and we ate them.",
        "Copyright law is a difficult matter.",
        "Share prices fell on Monday.",
        "Print was invented in the fifteenth century",
        "All rights reserved to the crown were given up in 1215.",
        "Read more books, he said.",
        "Log in hand, he went to the fire.",
    ],
)
def test_sentences_that_sound_like_notices_stay(tmp_path: Path, line: str) -> None:
    text = f"{_TEXT}\n{line}"
    texts, stats = run_local(Boilerplate(), [text], tmp_path)
    assert texts == [text]
    assert not stats.changed


def test_own_patterns_take_the_place_of_the_notices(tmp_path: Path) -> None:
    step = Boilerplate(patterns=[r"^page \d+$"])
    assert run_local(step, ["Here it is.\nPage 7\nLog in"], tmp_path)[0] == ["Here it is.\nLog in"]
    long = "A long line that says: page 7, " * 10
    assert run_local(Boilerplate(patterns=["page 7"]), [long], tmp_path)[0] == [long]
    assert run_local(Boilerplate(patterns=["page 7"], pattern_characters=1000), [long], tmp_path)[0] == []
    with pytest.raises(ValidationError, match="is no regular expression"):
        Boilerplate(patterns=["(a"])


def test_menus_go_with_their_blank_lines(tmp_path: Path) -> None:
    menu = "Home\nAbout us\n\nOur products\nContact"
    texts, stats = run_local(Boilerplate(), [f"{menu}\n\n{_TEXT}\n\n{menu}\n\nThe end of it."], tmp_path)
    assert texts == [f"{_TEXT}\n\nThe end of it."]
    assert stats.changed == Counter({"menu lines": 8})


def test_a_menu_is_long_enough_of_lines_that_are_short_enough_and_end_like_no_sentence(tmp_path: Path) -> None:
    for short in ("Home\nAbout us\nContact", "Who?\nMe.\nWhy?\nSo.\nROMEO:", "\n".join(["four words are many"] * 1)):
        text = f"{_TEXT}\n{short}\n{_TEXT} Again."
        assert run_local(Boilerplate(edge_lines=0), [text], tmp_path)[0] == [text]
    three = Boilerplate(menu_lines=3, menu_words=1)
    assert run_local(three, [f"{_TEXT}\nOne\nTwo\nThree"], tmp_path)[0] == [_TEXT]
    assert run_local(three, [f"{_TEXT}\nOne\nTwo\nThree more"], tmp_path)[0] == [f"{_TEXT}\nOne\nTwo\nThree more"]
    none = Boilerplate(menu_lines=0)
    assert run_local(none, ["a\nb\nc\nd\ne\nf"], tmp_path)[0] == ["a\nb\nc\nd\ne\nf"]


def test_lines_that_the_head_or_the_foot_repeats_go_but_for_the_first(tmp_path: Path) -> None:
    body = "\n".join(f"This is line number {number} of the text." for number in range(8))
    text = f"The title of the page\n{body}\nAnd the middle of it.\n  The title of the page  \nEnd of page."
    texts, stats = run_local(Boilerplate(edge_lines=2), [text], tmp_path)
    assert texts == [f"The title of the page\n{body}\nAnd the middle of it.\nEnd of page."]
    assert stats.changed == Counter({"repeats at head or foot": 1})
    assert run_local(Boilerplate(edge_lines=1), [text], tmp_path)[0] == [text]
    assert run_local(Boilerplate(edge_lines=0), [text], tmp_path)[0] == [text]


def test_a_refrain_in_the_middle_stays(tmp_path: Path) -> None:
    verses = [f"This is the verse that has the number {number}," for number in range(6)]
    text = "\n".join(line for verse in verses for line in (verse, "and this is what they all sing.")) + "\nThe end."
    assert run_local(Boilerplate(edge_lines=1), [text], tmp_path)[0] == [text]


def test_a_page_without_text_is_dropped_and_its_lines_are_not_counted(tmp_path: Path) -> None:
    texts, stats = run_local(
        Boilerplate(), ["Home\nAbout\nContact\nLog in", "One\nTwo\nThree\nFour\nFive", ""], tmp_path
    )
    assert texts == ["Home\nAbout\nContact"]
    assert stats.dropped == Counter(empty=2)
    assert stats.changed == Counter(notices=1)


def test_what_stays_is_left_as_it_is(tmp_path: Path) -> None:
    text = "  An indented line of text.\n\n\n\nAnother,\tas it was "
    texts, _ = run_local(Boilerplate(), [text], tmp_path)
    assert texts == [text]


@pytest.mark.parametrize("language", ARTICLE)
def test_prose_of_any_language_is_no_menu(tmp_path: Path, language: str) -> None:
    text = "\n".join([ARTICLE[language]] * 6)
    assert run_local(Boilerplate(edge_lines=0), [text], tmp_path)[0] == [text]


def test_menus_of_any_script_go(tmp_path: Path) -> None:
    menus = {
        "zh": ["首页", "关于我们", "联系我们", "登录"],
        "ja": ["ホーム", "会社概要", "お問い合わせ", "ログイン"],
        "th": ["หน้าแรก", "ติดต่อเรา", "สินค้า", "ข่าว"],
        "ru": ["Главная", "О нас", "Контакты", "Вход"],
        "ko": ["홈", "회사 소개", "문의", "로그인"],
    }
    for language, lines in menus.items():
        text = "\n".join([*lines, ARTICLE[language] + "。"])
        assert run_local(Boilerplate(), [text], tmp_path)[0] == [ARTICLE[language] + "。"]
    short = "你好。\n再见！\n「好吗？」\n是的；"
    assert run_local(Boilerplate(), [short], tmp_path)[0] == [short]
