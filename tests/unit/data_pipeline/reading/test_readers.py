"""Every kind of file, whole and damaged."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from data_pipeline.config import ReadingConfig
from data_pipeline.errors import DataError
from data_pipeline.reading.formats import txt
from data_pipeline.reading.malformed import MalformedRecords
from data_pipeline.reading.readers import find_inputs, read_documents
from tests.helpers.datasets import settings

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def texts(path: Path, **changes: object) -> list[str]:
    return [d.texts[0] for d in read_documents(path, settings(input=str(path), output="out", **changes))]


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(PACK.get(path.suffix, bytes)(data.encode() if isinstance(data, str) else data))
    return path


def refuses(path: Path, *parts: str, **changes: object) -> None:
    with pytest.raises(DataError) as caught:
        texts(path, **changes)
    for part in (str(path), *parts):
        assert part in str(caught.value)


@pytest.mark.parametrize("suffix", PACK)
def test_jsonl_gives_one_document_per_line(tmp_path: Path, suffix: str) -> None:
    bodies = ["one\ntwo", "üñí ☃ \u2028 x", "three"]
    path = write(tmp_path / f"a.jsonl{suffix}", "\n".join(json.dumps({"id": 1, "body": b}) for b in bodies))
    documents = list(read_documents(path, settings(input=str(path), output="out", text_field="body")))
    assert [d.texts[0] for d in documents] == bodies
    assert [(d.file, d.index) for d in documents] == [(str(path), 0), (str(path), 1), (str(path), 2)]


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("size", [0, 100, 2**18 - 3, 2**18 + 3])
def test_txt_is_kept_exactly_over_block_borders(tmp_path: Path, suffix: str, size: int) -> None:
    text = "é" * size + "\r\nsecond\n\n\n  third \n" * 3
    path = write(tmp_path / f"a.txt{suffix}", text)
    assert texts(path, txt_documents="file") == [text]
    assert "".join(texts(path, txt_documents="passages", txt_passage_characters=50)) == text


def test_several_compressed_members_are_read_as_one(tmp_path: Path) -> None:
    for suffix in (".gz", ".bz2", ".zst"):
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(PACK[suffix](b"first\n") + PACK[suffix](b"second\n"))
        assert texts(path, txt_documents="line") == ["first", "second"]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("file", ["\n a\nb\n\n\nc\n \t\nd\n"]),
        ("paragraph", [" a\nb", "c", "d"]),
        ("line", [" a", "b", "c", "d"]),
        ("passages", ["\n a\nb\n\n\nc\n \t\nd\n"]),
    ],
)
def test_what_a_document_is_in_txt(tmp_path: Path, how: str, expected: list[str]) -> None:
    path = write(tmp_path / "a.txt", "\n a\nb\n\n\nc\n \t\nd\n")
    found = texts(path, txt_documents=how)
    assert [t.removesuffix("\n \t") if how == "paragraph" else t for t in found] == expected


def test_passages_end_at_blank_lines_and_are_about_as_long_as_asked(tmp_path: Path) -> None:
    paragraphs = [f"{i} " + "word " * (i % 40) + "\n" for i in range(400)]
    path = write(tmp_path / "a.txt", "\n".join(paragraphs))
    passages = texts(path, txt_documents="passages", txt_passage_characters=1000)
    assert "".join(passages) == "\n".join(paragraphs)
    assert all(1000 <= len(p) < 1400 and p.endswith("\n\n") for p in passages[:-1])
    assert len(passages) > 20


@pytest.mark.parametrize("separator", ["\n", " "])
def test_passages_are_bounded_without_blank_lines(tmp_path: Path, separator: str) -> None:
    text = separator.join(str(i) for i in range(20_000))
    path = write(tmp_path / "a.txt", text)
    passages = texts(path, txt_documents="passages", txt_passage_characters=1000)
    assert "".join(passages) == text
    assert max(map(len, passages)) <= 8000
    assert len(passages) >= 13


def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\ufeffa\n\ufeffb")
    assert texts(path, txt_documents="line") == ["a", "\ufeffb"]


def test_invalid_utf8_names_line_and_byte(tmp_path: Path) -> None:
    refuses(write(tmp_path / "a.txt", b"good\nb\xffd\n"), "line 2 (byte 6)", "UTF-8")
    refuses(write(tmp_path / "a.jsonl.gz", b'{"text": "a"}\n{"text": "\xe9"}\n'), "line 2 (byte 24)", "UTF-8")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"text": "a"', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"body": "a"}', "has no field 'text'"),
        ('["text"]', "has no field 'text'"),
        ('{"text": 5}', "is int, but must be a string"),
        ('{"text": null}', "is NoneType, but must be a string"),
        (r'{"text": "\ud83d"}', "half a character"),
    ],
)
def test_bad_json_lines_are_named(tmp_path: Path, line: str, complaint: str) -> None:
    refuses(write(tmp_path / "a.jsonl", '{"text": "a"}\n\n' + line + "\n"), "line 3:", complaint)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.wet", "a.txt.gz"])
def test_an_empty_file_has_no_documents_and_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    bad = MalformedRecords()
    assert list(read_documents(tmp_path / name, ReadingConfig(), "name", bad)) == []
    assert (bad.seen, bad.count) == (1, 1)
    assert bad.examples == [{"file": "name", "index": 0, "place": "the whole file", "reason": "it is empty"}]


def test_an_empty_dump_is_refused(tmp_path: Path) -> None:
    """An empty dump is an error, like every dump that ends before its last page does."""
    (tmp_path / "a.xml").write_bytes(b"")
    refuses(tmp_path / "a.xml", "empty")


@pytest.mark.parametrize("documents", ["passages", "paragraph", "file", "line"])
def test_fifty_million_line_ends_take_no_time(tmp_path: Path, documents: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at by the block: none of these lines is made."""
    packer = zlib.compressobj(wbits=31)
    with (tmp_path / "a.txt.gz").open("wb") as file:
        file.write(packer.compress(b"one\n"))
        for _ in range(50):
            file.write(packer.compress(b"\n" * 2**20))
        file.write(packer.compress(b"two\n"))
        file.write(packer.flush())
    made: list[int] = []
    raw = txt._raw_lines

    def counted(pieces: Iterator[bytes], limit: int) -> Iterator[tuple[int, int, bytes | None]]:
        for one in raw(pieces, limit):
            made.append(1)
            yield one

    monkeypatch.setattr(txt, "_raw_lines", counted)
    config = ReadingConfig(txt_documents=documents, max_document_bytes=2**24)
    found = [document.text.strip() for document in read_documents(tmp_path / "a.txt.gz", config)]
    assert " ".join(found).split() == ["one", "two"]
    assert len(made) < 2**20


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_cut_or_damaged_compression_is_refused(tmp_path: Path, suffix: str) -> None:
    whole = PACK[suffix](b"".join(b"%d line\n" % (i * i) for i in range(20_000)))
    path = tmp_path / f"a.txt{suffix}"
    for kept in (len(whole) - 1, len(whole) // 2, 5):
        path.write_bytes(whole[:kept])
        refuses(path, "ends before its compressed data does")
    path.write_bytes(b"this is plain text, not compressed at all")
    refuses(path)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("padding", [b"\n", b"\r\n", bytes(8), bytes(8) + b"\n"])
def test_line_ends_and_zeros_behind_a_compressed_member_are_none(suffix: str, padding: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACK[suffix](b"first\n") + padding + PACK[suffix](b"second\n") + padding)
    assert texts(path, txt_documents="line") == ["first", "second"]
    for data in (bytes(100), PACK[suffix](b"first\n") + padding + b"other text, not compressed"):
        path.write_bytes(data)
        refuses(path, "is damaged")


def far_zst() -> bytes:
    """A frame of zstd --long=28."""
    settings = zstandard.ZstdCompressionParameters(window_log=28, hash_log=10, chain_log=10, strategy=1)
    stream = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    return stream.compress(b"one\n") + stream.flush()


def far_xz() -> bytes:
    """A stream of xz --lzma2=dict=257MiB."""
    return lzma.compress(b"one\n", filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 257 * 2**20}])


@pytest.mark.parametrize(
    ("tool", "make", "limit"), [("zstd", far_zst, "further than 128 MiB"), ("xz", far_xz, "more than 256 MiB")]
)
def test_what_looks_back_too_far_is_no_damage_and_is_repacked_by_the_command_that_is_named(
    tool: str, make: Callable[[], bytes], limit: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a b.txt.{tool.removesuffix('d')}"
    path.write_bytes(make())
    with pytest.raises(DataError, match=f"can't be read: .*{limit}") as caught:
        texts(path)
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} here")
    command = str(caught.value).rpartition("new file: ")[2]
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert texts(path.with_name(f"repacked-{path.name}")) == ["one"]


def test_a_zstd_frame_with_a_dictionary_is_no_damage(tmp_path: Path) -> None:
    words = zstandard.train_dictionary(500, [b"%d hello world %d" % (n, n * n) for n in range(500)])
    (tmp_path / "a.txt.zst").write_bytes(zstandard.ZstdCompressor(dict_data=words).compress(b"hello world"))
    refuses(tmp_path / "a.txt.zst", "was compressed with a dictionary", "zstd -dc -D DICTIONARY")


def test_inputs_are_found_once_and_sorted(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", "sub/c.xml.bz2", "sub/readme.md", "x[1].txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    names = ["a.jsonl", "b.txt", "sub/c.xml.bz2", "x[1].txt"]
    assert [p.relative_to(tmp_path).as_posix() for p in find_inputs(str(tmp_path))] == names
    assert find_inputs([f"{tmp_path}/*.txt", f"{tmp_path}/b.txt"]) == [tmp_path / "b.txt", tmp_path / "x[1].txt"]
    assert find_inputs(f"{tmp_path}/x[1].txt") == [tmp_path / "x[1].txt"]
    assert find_inputs(f"{tmp_path}/**/c.*") == [tmp_path / "sub/c.xml.bz2"]


def test_inputs_that_name_nothing_or_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_text("x")
    (tmp_path / "empty").mkdir()
    for pattern in (f"{tmp_path}/none.txt", f"{tmp_path}/*.txt", f"{tmp_path}/empty"):
        with pytest.raises(DataError, match=re.escape(pattern)):
            find_inputs([f"{tmp_path}/a.pdf", pattern])
    with pytest.raises(DataError, match=r"a\.pdf is of no known kind"):
        find_inputs(f"{tmp_path}/a.pdf")


def test_passages_are_bounded_among_blank_lines(tmp_path: Path) -> None:
    text = "a\n" + "\n" * 5000 + "b\n"
    path = write(tmp_path / "a.txt", text)
    passages = texts(path, txt_documents="passages", txt_passage_characters=100)
    assert passages[0] == "a\n" + "\n" * 798
    assert passages[-1].endswith("b\n")
