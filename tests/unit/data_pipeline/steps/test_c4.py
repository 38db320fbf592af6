"""C4's rules, one by one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from data_pipeline.errors import DataError
from data_pipeline.steps.c4 import C4
from tests.helpers.many_languages import ARTICLE
from tests.helpers.steps import run_local

_PAGE = "This is the first sentence here. And here comes the second one!\nDoes a third one follow it?"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Home | About us and our friends | Contact", "lines without end mark"),
        ("This goes on and on and on...", "lines without end mark"),
        ("This goes on and on and on…", "lines without end mark"),
        ("Only four words here.", "lines of few words"),
        ("Please enable JavaScript in order to see this page.", "lines with javascript"),
        ("By going on you accept our Privacy Policy and more.", "lines with privacy policy"),
        ("This site uses cookies, as all of them do.", "lines with uses cookies"),
    ],
)
def test_lines_that_are_no_sentences_go_and_are_counted(tmp_path: Path, line: str, kind: str) -> None:
    texts, stats = run_local(C4(), [f"{line}\n\n{_PAGE}\n  "], tmp_path)
    assert texts == [_PAGE]
    assert stats.changed == Counter({kind: 1})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            _PAGE.replace(" Does a third one follow it?", "").replace("\nDoes a third one follow it?", ""),
            "few sentences",
        ),
        (_PAGE + "\nLOREM ipsum", "lorem ipsum"),
        (_PAGE + "\nfunction() {", "{"),
        ("", "few sentences"),
    ],
)
def test_pages_that_are_not_wanted_are_dropped_and_count_no_lines(tmp_path: Path, text: str, reason: str) -> None:
    texts, stats = run_local(C4(), [text + "\nno end"], tmp_path)
    assert texts == []
    assert stats.dropped == Counter({reason: 1})
    assert not stats.changed


def test_good_pages_and_quotations_stay(tmp_path: Path) -> None:
    good = [_PAGE, 'She said: "I am here now."\n“And so are we, all of us.”\nThat was all that they said.']
    texts, stats = run_local(C4(), good, tmp_path)
    assert texts == good
    assert not stats.changed


def test_citation_marks_go_before_a_line_is_judged(tmp_path: Path) -> None:
    text = "Water is wet, as is known.[1]\nIt boils[citation needed] at 100 degrees.[23]\nIt freezes at 0.[a][edit]"
    texts, stats = run_local(C4(min_sentences=2), [text], tmp_path)
    assert texts == ["Water is wet, as is known.\nIt boils at 100 degrees."]
    assert stats.changed == Counter({"citation marks": 4, "lines without end mark": 1})
    assert run_local(C4(citations=False), [text], tmp_path)[0] == []


def test_the_first_version_of_the_paper_can_be_set(tmp_path: Path) -> None:
    page = "\n".join(["Three words here."] * 5)
    assert run_local(C4(min_sentences=5, min_words=3), [page], tmp_path)[0] == [page]
    assert run_local(C4(), [page], tmp_path)[0] == []


def test_a_long_word_takes_its_line_when_set(tmp_path: Path) -> None:
    text = _PAGE + f"\nHere is a word: {'a' * 1001}."
    assert run_local(C4(max_word_characters=1000), [text], tmp_path)[0] == [_PAGE]
    assert run_local(C4(), [text], tmp_path)[0] == [text]


def test_pages_without_any_line_are_dropped_even_when_no_sentence_is_asked_for(tmp_path: Path) -> None:
    assert run_local(C4(min_sentences=0), ["no end"], tmp_path)[1].dropped == Counter(empty=1)


def test_bad_words_count_as_whole_words_only(tmp_path: Path) -> None:
    words = tmp_path / "bad.txt"
    words.write_text("darn\nbig fool\n\na$$\n", encoding="utf-8")
    step = C4(bad_words=words)
    bad = ["Darn it all!", "(a BIG fool)", "an a$$ here"]
    good = ["Darning socks!", "A fool so big", "a bigger big foolish fool", "ba$$ here"]
    for text in bad:
        assert run_local(step, [f"{_PAGE} {text}"], tmp_path)[1].dropped == Counter({"bad words": 1}), text
    for text in good:
        assert len(run_local(step, [f"{_PAGE} {text}."], tmp_path)[0]) == 1, text


def test_a_list_that_is_not_there_is_said_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt can't be read"):
        C4(bad_words=tmp_path / "none.txt").prepare(tmp_path)


@pytest.mark.parametrize("language", ARTICLE)
def test_lines_of_any_language_that_are_sentences_stay(tmp_path: Path, language: str) -> None:
    """Thai has no marks at the end of sentences; in quotes they end, too."""
    line = ARTICLE[language]
    cut = line[: len(line) // 2] + line[0]
    page = [line, f"「{line}」", f"«{line}»", cut, f"{line[:-1]}……"]
    kept, stats = run_local(C4(min_words=10), ["\n".join(page)], tmp_path)
    if language in ("th", "lo"):
        assert kept == ["\n".join(page[:4])]
    else:
        assert kept == ["\n".join(page[:3])]
    assert stats.changed["lines without end mark"] == 5 - len(kept[0].split("\n"))


def test_words_of_a_line_are_counted_in_any_script(tmp_path: Path) -> None:
    short = ["首页。", "หน้าแรก", "トップ。", "ទំព័រ។", "Home.", "ዋና፡ገጽ።"]
    kept, stats = run_local(C4(min_sentences=1), ["\n".join([*short, *ARTICLE.values()])], tmp_path)
    assert stats.changed == {"lines of few words": len(short)}
    assert kept == ["\n".join(ARTICLE.values())]
    longest = max(len(word) for language in ("en", "de", "ml") for word in ARTICLE[language].split())
    step = C4(max_word_characters=longest)
    assert not run_local(step, ["\n".join(ARTICLE.values())], tmp_path)[1].changed


def test_bad_words_of_scripts_without_spaces_are_found_within_text(tmp_path: Path) -> None:
    """C4's own code does this for zh, ja and th. Combining marks are parts of words."""
    words = tmp_path / "bad.txt"
    words.write_text("混蛋\nไอ้บ้า\nकम\nISINMAK\n", encoding="utf-8")
    bad = ["你这个混蛋啊", "มันไอ้บ้ามาก", "वह कम है", "Hava ısınmak"]
    good = ["你这个坏人啊", "उस की कमी है", "ısınmakta"]
    for text in (*bad, *good):
        _, stats = run_local(C4(bad_words=words, min_sentences=0, min_words=0, end_marks=text[-1]), [text], tmp_path)
        assert stats.dropped == ({"bad words": 1} if text in bad else {}), text
