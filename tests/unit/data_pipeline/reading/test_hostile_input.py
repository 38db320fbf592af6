"""Damaged and malicious files: a DataError or documents, never another exception, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from warcio.warcwriter import WARCWriter

from data_pipeline.errors import DataError
from data_pipeline.reading.documents import Document
from data_pipeline.reading.malformed import MalformedRecords
from data_pipeline.reading.readers import read_documents
from tests.helpers.breadth import slow
from tests.helpers.datasets import settings

TEXTS = [f"Text {i}: ünïcode ☃ and more of it.\n\nA second paragraph {i * i}." for i in range(12)]
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def jsonl() -> bytes:
    return "".join(json.dumps({"text": text, "n": [1, {}]}) + "\n" for text in TEXTS).encode()


def xml() -> bytes:
    pages = "".join(
        f"<page><title>T{i}</title><ns>0</ns><revision><text>{text}</text></revision></page>\n"
        for i, text in enumerate(TEXTS)
    )
    return (
        "<mediawiki><siteinfo><namespaces><namespace key='10'>Template</namespace></namespaces></siteinfo>\n"
        f"{pages}</mediawiki>"
    ).encode()


def wet() -> bytes:
    out = io.BytesIO()
    writer = WARCWriter(out, gzip=False)
    writer.write_record(writer.create_warcinfo_record("x.wet", {"software": "synthetic"}))
    for i, text in enumerate(TEXTS):
        payload = io.BytesIO(text.encode())
        record = writer.create_warc_record(f"http://x/../{i}", "conversion", payload, warc_content_type="text/plain")
        writer.write_record(record)
    return out.getvalue()


def parquet(compression: str = "snappy", dictionary: bool = True, encoding: str | None = None) -> bytes:
    out = io.BytesIO()
    table = pa.table({"n": list(range(len(TEXTS))), "text": TEXTS})
    pq.write_table(
        table,
        out,
        row_group_size=5,
        compression=compression,
        use_dictionary=dictionary and not encoding,
        column_encoding={"text": encoding} if encoding else None,
    )
    return out.getvalue()


FORMATS = {".txt": lambda: "\n".join(TEXTS).encode(), ".jsonl": jsonl, ".xml": xml, ".wet": wet}
WHOLE = {
    **{f"a{kind}{packing}": PACK[packing](make()) for kind, make in FORMATS.items() for packing in PACK},
    "a.parquet": parquet(),
    "b.parquet": parquet("zstd", dictionary=False),
    "c.parquet": parquet("none"),
    "d.parquet": parquet(encoding="DELTA_BYTE_ARRAY"),
}


def read(path: Path, bad: MalformedRecords | None = None, **changes: object) -> list[Document]:
    return list(read_documents(path, settings(input=str(path), output="out", **changes), path.name, bad))


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_file_gives_its_texts(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(WHOLE[name])
    found = read(tmp_path / name, txt_documents="passages")
    if ".txt" in name:
        assert "".join(d.text for d in found) == "\n".join(TEXTS)
    elif ".xml" in name:
        assert [d.text for d in found] == [f"T{i}\n\n{text}\n" for i, text in enumerate(TEXTS)]
    else:
        assert [d.text for d in found] == TEXTS
        first = 1 if ".wet" in name else 0  # after the warcinfo record
        assert [d.index for d in found] == list(range(first, first + len(TEXTS)))


def mutated(whole: bytes, draw: random.Random) -> bytes:
    """A few bytes flipped, a run of bytes lost, doubled or moved in from elsewhere, or the end cut off."""
    data = bytearray(whole)
    for _ in range(draw.choice([1, 1, 2, 8])):
        place = draw.randrange(len(data))
        # Parquet keeps what is worth attacking at its end.
        place = draw.choice([place, max(len(data) - 1 - draw.randrange(600), 0)])
        size = draw.randrange(1, 40)
        how = draw.randrange(5)
        if how == 0:
            data[place] ^= 1 << draw.randrange(8)
        elif how == 1:
            data[place] = draw.choice([0, 0x7F, 0x80, 0xFF, ord("{"), ord("<"), ord("&")])
        elif how == 2:
            del data[place : place + size]
        elif how == 3:
            data[place:place] = data[draw.randrange(len(data)) :][:size]
        else:
            del data[place:]
        if not data:
            break
    return bytes(data)


@pytest.mark.parametrize("name", WHOLE)
def test_damage_is_a_data_error_or_leaves_documents(name: str, tmp_path: Path) -> None:
    draw = random.Random(name)
    refused = []
    changes = [{}, {"max_bad_fraction": 0.5}, {"txt_documents": "line"}, {"max_document_bytes": 200}]
    for case in range(60):
        path = tmp_path / name
        path.write_bytes(mutated(WHOLE[name], draw))
        try:
            for document in read(path, **changes[case % 4]):
                document.text.encode()
                assert document.file == name
        except DataError as error:
            refused.append(str(error))
    assert all(str(path) in message and "\n" not in message for message in refused)
    assert len(refused) > (0 if ".txt" in name else 10)
    assert [p.name for p in tmp_path.iterdir()] == [name]


BOMB_BYTES, SPARE_BYTES = 128 * 2**20, 80 * 2**20
CHILD = """
import resource, sys
from itertools import islice
from pathlib import Path
from typing import Any
from data_pipeline.build.config import BuildConfig
from data_pipeline.errors import DataError
from data_pipeline.reading.readers import read_documents
spare, most = int(sys.argv[1]), int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
for name in sys.argv[3:]:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, hard))
    try:
        bytearray(most)
    except MemoryError:
        print("the limit holds")
    for fraction in (0, 0.5) if name.endswith(".zst") else (0,):
        config = BuildConfig(input=name, output="o", max_document_bytes=2**20, max_bad_fraction=fraction)
        try:
            found = sum(1 for _ in islice(read_documents(Path(name), config), 1000))
            print(Path(name).name, found)
        except DataError as error:
            print(Path(name).name, "refused:", str(error)[:300].replace(name, ""))
"""


def _packed(head: bytes, unit: bytes, packing: str) -> bytes:
    """`head`, then `unit` over and over, compressed without ever being whole."""
    new: dict[str, Callable[[], object]] = {
        ".gz": lambda: zlib.compressobj(1, wbits=31),
        ".bz2": lambda: bz2.BZ2Compressor(1),
        ".xz": lambda: lzma.LZMACompressor(preset=0),
        ".zst": lambda: zstandard.ZstdCompressor(level=1).compressobj(),
    }
    stream: Any = new[packing]()
    piece = unit * (2**20 // len(unit))
    parts = [stream.compress(head), *(stream.compress(piece) for _ in range(BOMB_BYTES // len(piece)))]
    return b"".join([*parts, stream.flush()])


@pytest.mark.parametrize("packings", [(".gz", ".zst"), slow(((".bz2", ".xz"),))], ids=" ".join)
def test_bombs_are_refused_in_bounded_memory(packings: tuple[str, ...], tmp_path: Path) -> None:
    page = b"<mediawiki><page><title>T</title><text>"
    laughs = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 12))
    bombs: dict[str, bytes] = {
        **{f"zeros.jsonl{packing}": _packed(b"", bytes(64), packing) for packing in packings},
        "nested.jsonl": b"[" * 900_000 + b"]" * 100_000,
        "objects.jsonl": b"[" + b"{}," * 330_000 + b"{}]",
        "number.jsonl": b'{"text": ' + b"1" * 900_000 + b"}",
        "text.xml.zst": _packed(page, b"text " * 8, ".zst"),
        "elements.xml.zst": _packed(page, b"<a/>", ".zst"),
        "nested.xml.zst": _packed(page, b"<a>", ".zst"),
        "attribute.xml.zst": _packed(b"<mediawiki><page name='", b"abcd", ".zst"),
        "laughs.xml": f'<!DOCTYPE m [<!ENTITY l0 "ha">{laughs}]><m><page>&l11;</page></m>'.encode(),
        "header.wet.zst": _packed(b"WARC/1.0\r\n", b"a: b\r\n", ".zst"),
        "length.wet.zst": _packed(
            b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 999999999999\r\n\r\n", b"a", ".zst"
        ),
        # A frame that says that it looks back 2 GiB, and one literal byte.
        "window.txt.zst": bytes.fromhex("28b52ffd00a8 090000 61"),
    }
    for name, content in bombs.items():
        (tmp_path / name).write_bytes(content)
        assert len(content) < 2**24
    with (tmp_path / "line.txt").open("wb") as sparse:
        sparse.truncate(2**33)
    pq.write_table(
        pa.table({"text": ["x" * BOMB_BYTES]}),
        tmp_path / "value.parquet",
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
    )
    same = pa.DictionaryArray.from_arrays(pa.array([0] * 200_000, pa.int32()), pa.array(["y" * 2**19]))
    pq.write_table(pa.table({"text": same}), tmp_path / "same.parquet", compression="zstd")
    pq.write_table(
        pa.table({"text": ["y" * 2**19] * 300}),
        tmp_path / "prefix.parquet",
        use_dictionary=False,
        write_statistics=False,
        column_encoding={"text": "DELTA_BYTE_ARRAY"},
    )
    parquets = ["value.parquet", "same.parquet", "prefix.parquet"]
    names = [str(tmp_path / name) for name in [*bombs, "line.txt", *parquets]]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(SPARE_BYTES), str(BOMB_BYTES), *names],
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line != "the limit holds"]
    assert done.stdout.count("the limit holds\n") == len(names)
    assert [line for line in lines if "refused" not in line] == ["same.parquet 1000", "prefix.parquet 300"]
    assert {line.split()[0] for line in lines} == {Path(name).name for name in names}
    assert sum("value.parquet refused" in line and "bytes on average" in line for line in lines) == 1
