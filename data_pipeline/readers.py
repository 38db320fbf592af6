"""Files -> documents: .txt, .jsonl and MediaWiki .xml, each as it is or as .gz, .bz2 or .zst, streamed.

Whatever can't be read as it should be is an error that names the file and the place; only a wiki dump may end early.
"""

from __future__ import annotations

import bz2
import glob
import json
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

import zstandard

from data_pipeline.config import Reading
from data_pipeline.documents import Document
from data_pipeline.errors import DataError
from data_pipeline.wikitext import plain

_DECOMPRESSORS = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".bz2": bz2.BZ2Decompressor,
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
_BLOCK_BYTES = 2**18
_log = logging.getLogger(__name__)


def find_inputs(patterns: str | list[str]) -> list[Path]:
    """Files that `patterns` name, sorted and without repeats; a directory stands for the readable files below it.

    Raises DataError when one names nothing, or a file of an unknown kind.
    """
    found: set[Path] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        path = Path(pattern).expanduser()
        if path.is_dir():
            matches = [p for p in path.rglob("*") if p.is_file() and _kind(p)]
        else:
            # A file whose name holds [ or * is itself before it is a pattern.
            names = [str(path)] if path.is_file() else glob.glob(str(path), recursive=True)
            matches = [Path(name) for name in names if os.path.isfile(name)]
        if not matches:
            raise DataError(f"No file matches input {pattern!r}; give a .txt, .jsonl or .xml file, directory or glob.")
        found.update(matches)
    for path in found:
        if not _kind(path):
            raise DataError(f"{path} is of no known kind; input is .txt, .jsonl or .xml, also as .gz, .bz2 or .zst.")
    return sorted(found)


def read_documents(path: Path, config: Reading, name: str | None = None) -> Iterator[Document]:
    """The documents of one file, in order, which say that they come from `name` (by itself the path).

    Raises DataError naming the file and line or byte that can't be read.
    """
    blocks = _blocks(path)
    if config.pair_fields:
        if _kind(path) != ".jsonl":
            raise DataError(f"{path} holds no pairs; with pair_fields, give .jsonl files only.")
        for index, pair in enumerate(_json_texts(path, _lines(path, blocks), config.pair_fields)):
            if all(text.strip() for text in pair):
                yield Document(pair, name or str(path), index)
        return
    texts: Iterator[str]
    if _kind(path) == ".xml":
        texts = _articles(path, blocks)
    elif _kind(path) == ".jsonl":
        texts = (text for (text,) in _json_texts(path, _lines(path, blocks), (config.text_field,)))
    elif config.txt_documents == "file":
        texts = iter(["".join(_lines(path, blocks))])
    elif config.txt_documents == "line":
        texts = (line.strip("\r\n") for line in _lines(path, blocks))
    elif config.txt_documents == "paragraph":
        texts = (text.strip("\r\n") for text in _passages(_lines(path, blocks), 1))
    else:
        texts = _passages(_lines(path, blocks), config.txt_passage_characters)
    for index, text in enumerate(texts):
        if text.strip():
            yield Document((text,), name or str(path), index)


def read_records(path: Path) -> Iterator[tuple[int, Any]]:
    """(number from 1, value) of each line of a .jsonl file that is not blank.

    Raises DataError naming the file and line or byte that can't be read.
    """
    for number, line in enumerate(_lines(path, _blocks(path)), start=1):
        if line.strip():
            yield number, _json(path, number, line)


def _kind(path: Path) -> str | None:
    """.txt, .jsonl or .xml, whatever compresses it; None when it is something else."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _DECOMPRESSORS:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in (".txt", ".jsonl", ".xml") else None


def _blocks(path: Path) -> Iterator[bytes]:
    """The decompressed bytes of a file, piece by piece."""
    new = _DECOMPRESSORS.get(path.suffix.lower())
    try:
        with path.open("rb") as file:
            raw = iter(lambda: file.read(_BLOCK_BYTES), b"")
            yield from _decompressed(path, raw, new) if new else raw
    except (zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{path} is damaged ({error}); fetch or compress it again.") from error
    except OSError as error:
        raise DataError(
            f"{path} can't be read ({error.strerror or error}); fetch it again or fix its access."
        ) from error


def _decompressed(path: Path, raw: Iterator[bytes], new: Any) -> Iterator[bytes]:
    """All members (gzip) or frames (zstd) of a compressed file, one after the other."""
    stream = None
    for block in raw:
        while block:
            stream = stream or new()
            yield stream.decompress(block)
            block = stream.unused_data if stream.eof else b""
            stream = None if stream.eof else stream
    if stream is not None:
        raise DataError(f"{path} ends before its compressed data does; it was cut off: fetch it again.")


def _lines(path: Path, blocks: Iterator[bytes]) -> Iterator[str]:
    """Decoded lines with their ends as they are. A byte order mark at the start is dropped."""
    number = 0
    for number, (offset, line) in enumerate(_raw_lines(blocks), start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            where = f"line {number} (byte {offset + error.start})"
            raise DataError(f"{path}, {where}: not UTF-8 ({error.reason}); convert the file to UTF-8.") from error
    if number == 0:
        raise DataError(f"{path} is empty; remove it from the input or fetch it again.")


def _raw_lines(blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """(byte offset, line with its end) for each line."""
    offset, parts = 0, [b""]
    for block in blocks:
        first, *others = block.split(b"\n")
        parts.append(first)
        for other in others:
            line = b"".join(parts) + b"\n"
            yield offset, line
            offset += len(line)
            parts = [other]
    if last := b"".join(parts):
        yield offset, last


def _passages(lines: Iterator[str], least: int) -> Iterator[str]:
    """Runs of lines, each ended by the first blank lines after `least` characters.

    Text without blank lines is cut at a line end after 2 * `least` instead, and within a line after 8 * `least`,
    unless single paragraphs (`least` 1) are asked for. Put together, the passages are the text.
    """
    held: list[str] = []
    size, blank = 0, False
    for line in lines:
        was_blank, blank = blank, not line.strip()
        if held and not blank and ((size >= least and was_blank) or (size >= 2 * least and least > 1)):
            yield "".join(held)
            held, size = [], 0
        while least > 1 and len(line) > 8 * least:
            yield "".join(held) + line[: 8 * least]
            held, size, line = [], 0, line[8 * least :]
        held.append(line)
        size += len(line)
    if held:
        yield "".join(held)


def _json_texts(path: Path, lines: Iterator[str], fields: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The texts under `fields` of each line."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            yield ("",) * len(fields)  # keeps `index` the line's number
            continue
        record = _json(path, number, line)
        yield tuple(_json_text(f"{path}, line {number}", record, field) for field in fields)


def _json(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: not JSON ({error}); mend or remove that line.") from error


def _json_text(place: str, record: Any, field: str) -> str:
    if not isinstance(record, dict) or field not in record:
        raise DataError(f"{place}: has no field {field!r}; name the text's in text_field, or a pair's in pair_fields.")
    text = record[field]
    if not isinstance(text, str):
        raise DataError(f"{place}: field {field!r} is {type(text).__name__}, but must be a string.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: field {field!r} holds half a character ({error.reason}).") from error
    return text


def _articles(path: Path, blocks: Iterator[bytes]) -> Iterator[str]:
    """Title and plain prose of each article of a MediaWiki export, which may be cut off after its first page."""
    parser: XMLPullParser[Any] = XMLPullParser(events=("start", "end"))
    root: Element | None = None
    spaces: set[str] = set()  # names of the namespaces that hold no articles
    in_page, count, nothing = False, 0, True
    try:
        for block in blocks:
            parser.feed(block)
            for event, element in cast(Iterator[tuple[str, Element]], parser.read_events()):
                root = element if root is None else root
                tag = element.tag.rpartition("}")[2]
                nothing = False
                if event == "start":
                    in_page = in_page or tag == "page"
                elif tag == "namespace" and element.get("key") != "0":
                    spaces.add(element.text or "")
                elif tag == "page":
                    count, in_page = count + 1, False
                    yield _article(element, spaces)
                    root.clear()
    except ParseError as error:
        raise DataError(f"{path}: not XML ({error}); fetch the dump again.") from error
    if count == 0:
        what = "empty" if nothing else "not a MediaWiki export, or was cut off within its first page"
        raise DataError(f"{path} is {what}; input of kind .xml must be a dump as Wikipedia publishes them.")
    if in_page:
        _log.warning("%s ends inside an article: that one is left out, %d pages were read.", path, count)


def _article(page: Element, spaces: set[str]) -> str:
    """One page as title, blank line, prose; "" for redirects and for pages that are not articles."""
    fields = {element.tag.rpartition("}")[2]: element.text or "" for element in page.iter()}
    title, markup = fields.get("title", ""), fields.get("text", "")
    other = fields.get("ns", "0") != "0" or (":" in title and title.partition(":")[0] in spaces)
    if other or "redirect" in fields or markup.lstrip()[:9].upper() == "#REDIRECT":
        return ""
    prose = plain(markup)
    return f"{title}\n\n{prose}\n" if prose else ""
