"""MediaWiki exports, as Wikipedia publishes them: each article's title and prose."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from mwparserfromhell.parser import ParserError

from data_pipeline.config import ReadingConfig
from data_pipeline.errors import DataError
from data_pipeline.reading import wikitext
from data_pipeline.reading.formats.decompress import BLOCK_BYTES, read_blocks
from data_pipeline.reading.malformed import RecordCounter

VERSION = wikitext.VERSION
_MAX_ELEMENTS = 2**17  # of one page: a page's history has some ten for each of its revisions
_NO_PROSE = ("-2", "6", "14")  # namespaces of media, pictures, categories, in every language
_log = logging.getLogger(__name__)


def read(path: Path, config: ReadingConfig, records: RecordCounter) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(page from 0, its title, blank line and prose) of an export, which may be cut off after its first page.

    Broken XML loses the rest of the file, so it is a DataError, never a malformed record. So is a page that is larger
    than `max_document_bytes`, give or take a block; and entities that grow without measure, which expat refuses.
    """
    parser: XMLPullParser[Any] = XMLPullParser(events=("start", "end"))
    root: Element | None = None
    spaces: set[str] = set()  # names of the namespaces that hold no articles
    no_prose = frozenset[str]()
    in_page, count, nothing = False, 0, True
    size = elements = 0  # since the last page's end
    for block in read_blocks(path):
        for event, element in _events(path, parser, block):
            root = element if root is None else root
            tag = element.tag.rpartition("}")[2]
            nothing = False
            if event == "start":
                in_page = in_page or tag == "page"
                elements += 1
            elif tag == "namespace" and element.get("key") != "0":
                spaces.add(element.text or "")
                if element.get("key") in _NO_PROSE and element.text:
                    no_prose |= {element.text.lower()}
            elif tag == "page":
                records.seen += 1
                try:
                    article = _article(element, spaces, no_prose)
                except ParserError as error:
                    advice = "leave it out with max_bad_fraction"
                    records.malformed(count, f"page {count}", f"its markup can't be parsed ({error})", advice)
                else:
                    yield count, (article,)
                root.clear()
                in_page, count, size, elements = False, count + 1, 0, 0
        size += len(block)
        if size > config.max_document_bytes + BLOCK_BYTES or elements > _MAX_ELEMENTS:
            raise DataError(
                f"{path}: what follows page {count} is no page of at most {config.max_document_bytes} bytes and "
                f"{_MAX_ELEMENTS} elements; fetch the dump again, or raise max_document_bytes."
            )
    if count == 0:
        what = "empty" if nothing else "not a MediaWiki export, or was cut off within its first page"
        raise DataError(f"{path} is {what}; input of kind .xml must be a dump as Wikipedia publishes them.")
    if in_page:
        _log.warning("%s ends inside an article: that one is left out, %d pages were read.", path, count)


def _events(path: Path, parser: XMLPullParser[Any], block: bytes) -> Iterator[tuple[str, Element]]:
    try:
        parser.feed(block)
        events = list(cast(Iterator[tuple[str, Element]], parser.read_events()))
    except (ParseError, ValueError, LookupError) as error:  # the last two: encodings that Python or expat lack
        raise DataError(f"{path}: not XML ({error}); fetch the dump again.") from error
    return iter(events)


def _article(page: Element, spaces: set[str], no_prose: frozenset[str]) -> str:
    """One page as title, blank line, prose; "" for redirects and for pages that are not articles."""
    fields = {element.tag.rpartition("}")[2]: element.text or "" for element in page.iter()}
    title, markup = fields.get("title", ""), fields.get("text", "")
    other = fields.get("ns", "0") != "0" or (":" in title and title.partition(":")[0] in spaces)
    if other or "redirect" in fields or markup.lstrip()[:9].upper() == "#REDIRECT":
        return ""
    prose = wikitext.plain(markup, no_prose)
    return f"{title}\n\n{prose}\n" if prose else ""
