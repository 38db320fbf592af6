"""Wiki markup -> plain prose, by a few rules: what is not running text (templates, tables, notes, pictures) goes."""

from __future__ import annotations

import html
import re

_COMMENT = re.compile(r"<!--.*?(-->|\Z)", re.S)
_DROPPED = "ref|references|math|gallery|timeline|nowiki|pre|code|source|imagemap|table|div|score"
# <ref ... /> first: it opens nothing, so it must not be taken for the start of <ref>...</ref>.
_EMPTY_TAG = re.compile(rf"<(?:{_DROPPED})\b[^<>]*/>", re.I)
_DROPPED_TAG = re.compile(rf"<({_DROPPED})\b[^<>]*>.*?</\1\s*>", re.I | re.S)
_TAG = re.compile(r"</?[a-z][^<>]*>", re.I)
_BREAK = re.compile(r"<br\b[^<>]*>", re.I)
_BRACES = re.compile(r"\{\{|\}\}|^[ \t:*]*\{\||^[ \t]*\|\}", re.M)
_LINK = re.compile(r"\[\[|\]\]")
_PREFIX = re.compile(r"^\s*([a-z][a-z_-]+)\s*:", re.I)
# Possessive (*+): a link that is never closed is given up at once, not tried in every way that it can be cut.
_WEB_LINK = re.compile(r"\[(?:https?|ftp|news|mailto|irc):?//?[^\s\]]*+\s*+([^\]\n]*+)\]", re.I)
_MAIL_LINK = re.compile(r"\[mailto:[^\s\]]*+\s*+([^\]\n]*+)\]", re.I)
_HEADING = re.compile(r"^(={2,6})[ \t]*(.*?)[ \t]*=+[ \t]*$", re.M)
# A heading with nothing below it before the next one of its own rank or above, or before the end.
_BARE_HEADING = re.compile(r"^(={2,6})(?!=).*=[ \t]*\n\s*(?=(?!\1=)==|\Z)", re.M)
_LIST_MARK = re.compile(r"^[*#:;]+[ \t]*", re.M)
_TABLE_LEFTOVER = re.compile(r"^[ \t]*\{?[|!].*$|^[ \t{}]+$|^-{4,}.*$|__[A-Z]{3,}__", re.M)
_LAST_SECTIONS = "see also|references|external links?|notes|further reading|bibliography|sources|footnotes|links"
_LAST = re.compile(rf"^==[ \t]*(?:{_LAST_SECTIONS})[ \t]*==[ \t]*$", re.I | re.M)


def plain(markup: str) -> str:
    """Wiki markup of one page -> its prose: paragraphs and headings with blank lines between; "" when none is left."""
    text = _COMMENT.sub("", markup)
    text = html.unescape(text)
    text = _DROPPED_TAG.sub("", _EMPTY_TAG.sub("", text))
    text = _TAG.sub("", _BREAK.sub("\n", text))
    text = _without_braces(text)
    text = _with_link_texts(text)
    text = _WEB_LINK.sub(r"\1", text)
    text = _MAIL_LINK.sub(r"\1", text)
    text = re.sub(r"'{2,5}", "", text)
    text = _TABLE_LEFTOVER.sub("", text)
    text = _without_last_sections(text)
    before = None
    while text != before:  # dropping a bare heading may bare the one above it
        before, text = text, _BARE_HEADING.sub("", text)
    text = _HEADING.sub(r"\n\2\n", text)
    return _tidied(_LIST_MARK.sub("", text))


def _without_braces(text: str) -> str:
    """Without {{templates}} and {| tables |}, which nest; one that is never closed goes up to a blank line."""
    kept: list[str] = []
    depth, start, position = 0, 0, 0
    for match in _BRACES.finditer(text):
        if match[0].lstrip(" \t:*") in ("{{", "{|"):
            if depth == 0:
                kept.append(text[position : match.start()])
                start = match.start()
            depth += 1
        elif depth:
            depth -= 1
            position = match.end()
    if depth:
        blank = text.find("\n\n", start)
        position = len(text) if blank < 0 else blank
    kept.append(text[position:])
    return "".join(kept)


def _with_link_texts(text: str) -> str:
    """[[target|shown]] -> shown, [[target]] -> target; pictures, categories and other languages' links -> nothing."""
    stack: list[list[str]] = [[]]
    position = 0
    for match in _LINK.finditer(text):
        stack[-1].append(text[position : match.start()])
        position = match.end()
        if match[0] == "[[":
            stack.append([])
        elif len(stack) > 1:
            inside = "".join(stack.pop())
            stack[-1].append(_shown(inside))
    stack[-1].append(text[position:])
    return "".join(part for level in stack for part in level)


def _shown(link: str) -> str:
    target, bar, label = link.partition("|")
    prefix = _PREFIX.match(target)
    if prefix and not target.startswith(":"):
        space = prefix[1].lower()
        # Two or three small letters, or two and more after a dash, are a language: [[de:Haus]], [[zh-min-nan:...]].
        if space in ("image", "file", "category", "media") or re.fullmatch(r"[a-z]{2,3}(-[a-z-]+)?|simple", space):
            return ""
    if bar:
        return label.rpartition("|")[2]
    return target.lstrip(":").partition("#")[0] or target.lstrip("#")


def _without_last_sections(text: str) -> str:
    """Up to the sections that close an article with pointers elsewhere."""
    last = _LAST.search(text)
    return text[: last.start()] + "\n" if last else text


def _tidied(text: str) -> str:
    """One space between words, one blank line between paragraphs, no brackets or headings that lost their content."""
    text = re.sub(r"\(\s*[,;:]*\s*\)|\[\s*\]", "", text)
    text = re.sub(r"[ \t\u00a0]+", " ", text)
    text = re.sub(r" +([,.;:)])", r"\1", text)
    text = re.sub(r" *\n *", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()
