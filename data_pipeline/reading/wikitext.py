"""Wiki markup -> plain prose: what is not running text (templates, tables, notes, pictures) goes.

mwparserfromhell says what is what; what is prose is decided here. Markup that its author never closed is text to the
parser, and is cleaned up by line.
"""

from __future__ import annotations

import html
import re
from typing import NamedTuple

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Tag, Text, Wikilink
from mwparserfromhell.wikicode import Wikicode

from data_pipeline.reading.wiki_titles import LAST_SECTION

VERSION = 3
"""To be raised when equal markup would give other prose. 1 was a parser of our own; 2 knew only names in English."""

_DROPPED = frozenset(("ref", "references", "math", "gallery", "timeline", "imagemap", "table", "div", "score", "hr"))
_VERBATIM = frozenset(("nowiki", "pre", "code", "source", "syntaxhighlight"))
_LIST_ITEMS = frozenset(("li", "dt", "dd"))
_NO_PROSE = frozenset(("image", "file", "category", "media"))  # which every wiki knows, besides its own names
# Two or three small letters, or two and more after a dash, are a language: [[de:Haus]], [[zh-min-nan:...]].
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z-]+)?|simple")
_UNCLOSED_TAG = re.compile(r"</?[a-z][^<>]*>", re.I)
# Rows of tables, what closes templates and tables, marks of lists and of styles, switches such as __NOTOC__.
_LEFTOVER = re.compile(r"^[ \t]*[|!].*$|^[*#:;]*[ \t]*\{\|.*$|^[ \t{}]+$|^[*#:;]+[ \t]*|'{2,}|__[A-Z]{3,}__", re.M)


class _Section(NamedTuple):
    level: int
    """0 before the first heading."""
    title: str
    prose: str


def plain(markup: str, no_prose: frozenset[str] = frozenset()) -> str:
    """Wiki markup of one page -> its prose: paragraphs and headings with blank lines between; "" when none is left.
    `no_prose` are the wiki's own names, in lower case, of the namespaces of pictures, media and categories.

    Raises mwparserfromhell's ParserError for markup that it fails on.
    """
    page = mwparserfromhell.parse(markup, skip_style_tags=True)  # bold and italic marks are only taken out
    kept: list[_Section] = []  # the last one first
    for section in reversed(_sections(page, _NO_PROSE | no_prose)):
        # A heading with nothing below it before the next one of its own rank or above goes.
        if section.prose or (kept and kept[-1].level > section.level):
            kept.append(section)
    parts = [part for section in reversed(kept) for part in (section.title, section.prose)]
    return "\n\n".join(part for part in parts if part)


def _sections(page: Wikicode, no_prose: frozenset[str]) -> list[_Section]:
    """Up to the sections that close an article with pointers elsewhere."""
    sections: list[_Section] = []
    level, title, parts = 0, "", list[str]()
    for node in page.nodes:
        if not isinstance(node, Heading):
            parts.append(_prose(node, no_prose))
            continue
        sections.append(_Section(level, title, _tidied("".join(parts))))
        level, title, parts = node.level, _tidied(_text(node.title, no_prose)), []
        if level == 2 and LAST_SECTION.fullmatch(title):
            return sections
    return [*sections, _Section(level, title, _tidied("".join(parts)))]


def _text(code: Wikicode | None, no_prose: frozenset[str]) -> str:
    return "" if code is None else "".join(_prose(node, no_prose) for node in code.nodes)


def _prose(node: object, no_prose: frozenset[str]) -> str:
    """The part of `node` that a reader sees in the running text: nothing of templates, their arguments and comments."""
    match node:
        case Text():
            return _UNCLOSED_TAG.sub("", node.value)
        case HTMLEntity():
            return html.unescape(str(node))
        case Wikilink():
            return _shown(node, no_prose)
        case ExternalLink():
            return _text(node.title, no_prose) if node.brackets else str(node.url)
        case Heading():  # inside a tag
            return f"\n\n{_text(node.title, no_prose)}\n\n"
        case Tag():
            name = str(node.tag).strip().lower()
            if name == "br":
                return "\n"
            if name in _LIST_ITEMS and node.wiki_markup:
                return str(node.wiki_markup)  # goes where a line begins with it; the colon of "; term : text" stays
            return "" if name in _DROPPED | _VERBATIM else _text(node.contents, no_prose)
        case _:
            return ""


def _shown(link: Wikilink, no_prose: frozenset[str]) -> str:
    """[[target|shown]] -> shown, [[target]] -> target; pictures, categories and other languages' links -> nothing."""
    target = _text(link.title, no_prose)
    space, colon, _ = target.partition(":")
    if colon and ((space := space.strip().lower()) in no_prose or _LANGUAGE.fullmatch(space)):
        return ""
    if link.text is not None:
        return _text(link.text, no_prose).rpartition("|")[2]
    return target.lstrip(":").partition("#")[0] or target.lstrip("#")


def _tidied(text: str) -> str:
    """One space between words, one blank line between paragraphs, no brackets or lines that lost their content."""
    text = _LEFTOVER.sub("", text)
    text = re.sub(r"\(\s*[,;:]*\s*\)|\[\s*\]", "", text)
    text = re.sub(r"[ \t\u00a0]+", " ", text)
    text = re.sub(r" +([,.;:)])", r"\1", text)
    text = re.sub(r" *\n *", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()
