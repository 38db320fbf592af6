"""Wiki markup to prose, and dumps that are whole, cut off, or no dumps."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from mwparserfromhell.parser import ParserError

from data_pipeline.reading import wikitext
from data_pipeline.reading.wikitext import plain
from tests.unit.data_pipeline.reading.test_readers import refuses, texts, write

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.3/" version="0.3" xml:lang="en">
<siteinfo><namespaces><namespace key="0" />
<namespace key="1">Talk</namespace><namespace key="6">Image</namespace></namespaces></siteinfo>\n"""


def page(title: str, markup: str, more: str = "") -> str:
    text = f'<text xml:space="preserve">{escape(markup)}</text>'
    return f"<page><title>{title}</title>{more}<id>1</id><revision><comment>c</comment>{text}</revision></page>\n"


DUMP = (
    HEAD
    + page("Haus", "A '''house''' is a [[building]].")
    + page("Moved", "#redirect [[Haus]]")
    + page("Talk:Haus", "I think so.")
    + page("Modern", "Not an article.", "<ns>10</ns>")
    + page("Away", "Text", '<redirect title="Haus" />')
    + page("2001: A Space Odyssey", "A film &amp; a book.", "<ns>0</ns>")
    + page("Bare", "{{stub}}")
)
ARTICLES = ["Haus\n\nA house is a building.\n", "2001: A Space Odyssey\n\nA film & a book.\n"]


@pytest.mark.parametrize(
    ("markup", "prose"),
    [
        ("''a'' '''b''' '''''c''''' it's", "a b c it's"),
        ("[[a]] [[b|c]]s [[d (e)|]] [[:Category:f]] [[g#h]]", "a cs Category:f g"),
        ("x [[Image:a.png|thumb|A [[b|c]] d]] y", "x y"),
        ("x\n[[Category:A|*]]\n[[de:Haus]]\n[[zh-min-nan:Haus]]\n[[simple:House]]", "x"),
        ("a [http://x.org/y?z=1 the site] b [http://x.org] c [mailto:a@b.c mail]", "a the site b c mail"),
        ("a {{b|{{c}}|d}} e", "a e"),
        ("a\n{| class=x\n| b || {{c}}\n|-\n{| nested\n|}\n| d\n|}\ne", "a\n\ne"),
        ("a<ref>b <i>c</i></ref> d<ref name=x /> e<ref name=y>f</ref>.", "a d e."),
        ("a<!-- b\n -- c --> d<br/>e <sup>2</sup> <math>\\frac{{a}}{{b}}</math>", "a d\ne 2"),
        ("&nbsp; a&nbsp;b &lt; c &mdash; &#233;", "a b < c — é"),
        ("a\n== B ==\nc\n===D===\ne", "a\n\nB\n\nc\n\nD\n\ne"),
        ("a\n==Gone==\n===Too===\n{{x}}\n==B==\nc\n== See also ==\n* [[d]]", "a\n\nB\n\nc"),
        ("* a\n*# b\n: c\n----\n__NOTOC__", "a\nb\nc"),
        ("(; ) a ( , ) b", "a b"),
        ("&lt;a&gt; is a tag, <small>this is none", "<a> is a tag, this is none"),
        ("; a : b\n; c\n: d", "a: b\nc\nd"),
        ("== ''B'' ==\na '''''b''' c\n== ''See also''==\nd", "B\n\na b c"),
        ("a\n{| never closed\n| b\n|-\n! c\n\n:{| {{d}}\ne", "a\n\ne"),
        ("never {{closed\n\nafter", "never {{closed\n\nafter"),
        ("[[never closed\n\nafter ]] }} |}", "[[never closed\n\nafter ]] }} |}"),
    ],
)
def test_markup_becomes_prose(markup: str, prose: str) -> None:
    assert plain(markup).replace(" \n", "\n") == prose


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".zst"])
def test_a_dump_gives_its_articles(tmp_path: Path, suffix: str) -> None:
    assert texts(write(tmp_path / f"wiki.xml{suffix}", DUMP + "</mediawiki>")) == ARTICLES


def test_a_dump_cut_off_anywhere_gives_its_whole_pages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first_end = DUMP.index("</page>") + len("</page>")
    cut_page = page("Ende", "Ein Text mit Ümlaut.").encode()
    for cut in range(1, len(cut_page) - len(b"</page>\n")):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert texts(write(tmp_path / "wiki.xml", DUMP.encode() + cut_page[:cut])) == ARTICLES
        assert ("ends inside an article" in caplog.text) == (cut >= len("<page>"))
    for cut in (0, 50, first_end - 1):
        refuses(write(tmp_path / "wiki.xml", DUMP[:cut]))


def test_what_is_no_dump_is_refused(tmp_path: Path) -> None:
    refuses(write(tmp_path / "a.xml", "<feed><entry>x</entry></feed>"), "not a MediaWiki export")
    refuses(write(tmp_path / "b.xml", "just text"), "not XML")
    refuses(write(tmp_path / "c.xml", DUMP + "</page>"), "not XML")


def test_markup_that_the_parser_fails_on_is_a_malformed_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(markup: str, names: frozenset[str]) -> str:
        if "house" in markup:
            raise ParserError("a bug")
        return plain(markup)

    monkeypatch.setattr(wikitext, "plain", fails)
    path = write(tmp_path / "wiki.xml", DUMP + "</mediawiki>")
    refuses(path, "page 0: its markup can't be parsed")
    assert texts(path, max_bad_fraction=0.5) == ARTICLES[1:]


def test_links_that_are_never_closed_take_no_time_to_speak_of() -> None:
    began = time.process_time()
    assert plain("[http://" * 2500).startswith("[http://")
    assert time.process_time() - began < 5  # 0.4 s on an idle machine; minutes when every cut of each link is tried


@pytest.mark.parametrize(
    ("file", "category", "last"),
    [
        ("Datei", "Kategorie", "Einzelnachweise"),
        ("Tập tin", "Thể loại", "Tham khảo"),
        ("Dosya", "Kategori", "Kaynakça"),
        ("Файл", "Категория", "Примечания"),
        ("ملف", "تصنيف", "مراجع"),
        ("پرونده", "رده", "منابع"),
        ("चित्र", "श्रेणी", "सन्दर्भ"),
        ("പ്രമാണം", "വർഗ്ഗം", "അവലംബം"),
        ("ไฟล์", "หมวดหมู่", "อ้างอิง"),
        ("File", "Category", "参考文献"),
        ("ファイル", "カテゴリ", "脚注"),
        ("파일", "분류", "각주"),
    ],
)
def test_wikis_have_names_of_their_own_for_what_is_no_prose(
    tmp_path: Path, file: str, category: str, last: str
) -> None:
    names = "".join(f'<namespace key="{key}">{name}</namespace>' for key, name in ((6, file), (14, category)))
    head = f"<mediawiki><siteinfo><namespaces>{names}</namespaces></siteinfo>\n"
    markup = f"a [[{file}:x.png|thumb|b]]\n[[{category}:c]] [[{file.upper()}:y.png]] [[File:z]]\n== {last} ==\n* [[d]]"
    (found,) = texts(write(tmp_path / "dump.xml", head + page("T", markup) + "</mediawiki>"))
    assert found == "T\n\na\n"
