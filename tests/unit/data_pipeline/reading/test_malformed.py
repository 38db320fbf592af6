"""Malformed records: the first is an error, or a few are left out, counted and located."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warcio.archiveiterator import ArchiveIterator

from data_pipeline.build.config import BuildConfig
from data_pipeline.errors import DataError
from data_pipeline.reading.formats import warc
from data_pipeline.reading.malformed import MalformedRecords
from data_pipeline.reading.readers import find_inputs, read_documents
from tests.helpers.datasets import settings

BAD_LINES = [b'{"text": "\xff"}', b"{", b'{"body": "x"}', b'{"text": 5}', b'{"text": "%s"}' % (b"x" * 300)]
REASONS = ["not UTF-8", "not JSON", "has no field 'text'", "is int, but must be a string", "longer than 200 bytes"]


def good(number: int) -> bytes:
    return json.dumps({"text": f"document {number}"}).encode()


def read(path: Path, bad: MalformedRecords | None = None, **changes: object) -> list[tuple[int, str]]:
    config = settings(input=str(path), output="o", max_document_bytes=200, **changes)
    return [(d.index, d.text) for d in read_documents(path, config, path.name, bad)]


def test_malformed_lines_are_left_out_counted_and_located(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([good(0), *BAD_LINES, good(6), b""]))
    bad = MalformedRecords()
    assert read(path, bad, max_bad_fraction=0.8) == [(0, "document 0"), (6, "document 6")]
    assert (bad.seen, bad.count) == (7, 5)
    for number, (example, reason) in enumerate(zip(bad.examples, REASONS, strict=True), start=1):
        assert (example["file"], example["index"]) == ("a.jsonl", number)
        assert example["place"].startswith(f"line {number + 1}")
        assert reason in example["reason"]


@pytest.mark.parametrize(("line", "reason"), zip(BAD_LINES, REASONS, strict=True))
def test_by_default_the_first_malformed_line_is_an_error(line: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([good(0), line, good(2)]))
    with pytest.raises(DataError, match=rf"a\.jsonl, line 2\b.*{reason}"):
        read(path)


def test_too_many_malformed_lines_of_a_file_are_an_error_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([b"{", *map(good, range(9))]))
    assert len(read(path, max_bad_fraction=0.1)) == 9
    with pytest.raises(DataError, match=r"1 of the 10 .* max_bad_fraction=0\.09 .*line 1: not JSON"):
        read(path, max_bad_fraction=0.09)


def test_the_share_is_that_of_the_whole_file_wherever_malformed_lines_lie(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for bad, most in ((range(40, 45), 0.001), (range(1001, 1006), 0.001), (range(4995, 5000), 0.001)):
        path.write_bytes(b"\n".join([b"{" if i in bad else good(i) for i in range(5000)]))
        found = MalformedRecords()
        assert (
            len(list(read_documents(path, settings(input="a", output="o", max_bad_fraction=most), None, found))) == 4995
        )
        assert (found.count, found.seen) == (5, 5000)
        with pytest.raises(DataError, match=r"5 of the 5000 .* more than max_bad_fraction=0.0009 "):
            list(read_documents(path, settings(input="a", output="o", max_bad_fraction=0.0009)))


def test_what_was_counted_in_several_files_is_the_same_in_any_order(tmp_path: Path) -> None:
    found = []
    for name in ("b.jsonl", "a.jsonl", "c.jsonl"):
        (tmp_path / name).write_bytes(b"\n".join([good(0), b"{", b"[", good(1), good(2)]))
        found.append(MalformedRecords())
        read(tmp_path / name, found[-1], max_bad_fraction=0.5)
    merged = []
    for order in ([0, 1, 2], [2, 1, 0]):
        whole = MalformedRecords()
        for i in order:
            whole.add(MalformedRecords.from_dict(json.loads(json.dumps(found[i].to_dict()))))
        merged.append(whole)
    assert merged[0] == merged[1]
    assert (merged[0].seen, merged[0].count) == (15, 6)
    places = [(example["file"], example["index"]) for example in merged[0].examples]
    assert places == [("a.jsonl", 1), ("a.jsonl", 2), ("b.jsonl", 1), ("b.jsonl", 2), ("c.jsonl", 1)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("line", [(0, "one"), (3, "two")]),
        ("paragraph", [(0, "one"), (1, "two")]),
        ("file", [(0, "one\n\ntwo\n")]),
        ("passages", [(0, "one\n\ntwo\n")]),
    ],
)
def test_a_malformed_line_of_text_is_left_out_of_its_document(
    how: str, expected: list[tuple[int, str]], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\xff\n\ntwo\n" + b"x" * 201 + b"\n")
    bad = MalformedRecords()
    assert read(tmp_path / "a.txt", bad, max_bad_fraction=0.5, txt_documents=how) == expected
    assert [example["index"] for example in bad.examples] == [1, 4]


def test_a_paragraph_or_file_that_is_too_long_is_malformed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n" + "more words\n" * 30 + "\nthree\n")
    assert read(tmp_path / "a.txt", max_bad_fraction=0.5, txt_documents="paragraph") == [(0, "one"), (2, "three")]
    for how, what in (("paragraph", "paragraph 2"), ("file", "the file")):
        with pytest.raises(DataError, match=f"{what}: longer than 200 bytes"):
            read(tmp_path / "a.txt", txt_documents=how)


def strings(*values: bytes | None) -> pa.Array:
    """A column of strings that are not checked to be UTF-8."""
    column = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers())


def test_malformed_rows_of_parquet_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = strings(b"one", None, b"\xff", b"x" * 201, "zwölf".encode(), b"")
    pq.write_table(pa.table({"text": rows}), path, row_group_size=2)
    bad = MalformedRecords()
    assert read(path, bad, max_bad_fraction=0.5) == [(0, "one"), (4, "zwölf")]
    assert [example["place"] for example in bad.examples] == ["row 1", "row 2", "row 3"]
    assert (bad.seen, bad.count) == (6, 3)
    with pytest.raises(DataError, match=r"a\.parquet, row 1: field 'text' is null"):
        read(path)


def test_parquet_has_pairs_and_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = {"s": ["a", "b"], "t": pa.array(["c", "d"], pa.large_string()), "n": [1, 2]}
    table["d"] = pa.array(["e", "f"]).dictionary_encode()
    pq.write_table(pa.table(table), path)
    config = settings(input=str(path), output="o", pair_fields=("s", "t"))
    assert [d.texts for d in read_documents(path, config)] == [("a", "c"), ("b", "d")]
    assert read(path, text_field="d") == [(0, "e"), (1, "f")]
    for field, complaint in (("n", "is int64, but must be of strings"), ("text", "has no column 'text'")):
        with pytest.raises(DataError, match=complaint):
            read(path, text_field=field)


def test_parquet_of_many_row_groups_is_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = [f"document {i % 300}" for i in range(3000)]
    pq.write_table(pa.table({"text": values}), path, row_group_size=700)
    assert read(path) == list(enumerate(values))


TEXTS = ["one", "zwölf", None, "one", "two", "twofold"] * 60
PARQUET: dict[str, tuple[pa.Array, dict[str, Any]]] = {
    **{
        encoding: (pa.array(TEXTS), {"use_dictionary": False, "column_encoding": {"text": encoding}})
        for encoding in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN")
    },
    **{str(kind): (pa.array(TEXTS, kind), {}) for kind in (pa.large_string(), pa.string_view())},
    **{
        str(kind): (pa.array([text and text.encode() for text in TEXTS], kind), {})
        for kind in (pa.binary(), pa.large_binary(), pa.binary_view())
    },
    "dictionary of binary": (pa.array([text and text.encode() for text in TEXTS]).dictionary_encode(), {}),
}


@pytest.mark.parametrize("kind", PARQUET)
def test_parquet_of_every_encoding_and_type_of_text(kind: str, tmp_path: Path) -> None:
    path, (column, options) = tmp_path / "a.parquet", PARQUET[kind]
    pq.write_table(pa.table({"text": column, "n": range(len(TEXTS))}), path, row_group_size=100, **options)
    bad = MalformedRecords()
    assert read(path, bad, max_bad_fraction=0.5) == [(i, text) for i, text in enumerate(TEXTS) if text is not None]
    assert bad.count == TEXTS.count(None)


def test_parquet_that_arrow_cannot_decode_is_not_called_damaged(tmp_path: Path) -> None:
    path, encoding = tmp_path / "a.parquet", {"text": "DELTA_BYTE_ARRAY"}
    column = pa.array(["a", "b"]).dictionary_encode()
    pq.write_table(pa.table({"text": column}), path, use_dictionary=False, column_encoding=encoding)
    with pytest.raises(DataError, match=r"can't be read \(Not yet implemented: .*write it again"):
        read(path)


def record(kind: str, body: bytes, end: bytes = b"\r\n\r\n", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"WARC/1.0\r\nWARC-Type: %s\r\ncontent-LENGTH:%d\r\n\r\n" % (kind.encode(), size) + body + end


def test_malformed_records_of_warc_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.warc.wet"
    kinds = [("warcinfo", b"\xff"), ("conversion", b"one\r\n\r\nWARC/1.0"), ("metadata", b"x" * 999)]
    broken = [("conversion", b"\xff"), ("conversion", b"x" * 201), ("conversion", b"two")]
    path.write_bytes(b"".join(record(kind, body) for kind, body in kinds + broken))
    bad = MalformedRecords()
    assert read(path, bad, max_bad_fraction=0.5) == [(1, "one\r\n\r\nWARC/1.0"), (5, "two")]
    assert [example["index"] for example in bad.examples] == [3, 4]
    assert (bad.seen, bad.count) == (4, 2)
    with pytest.raises(DataError, match=r"record 3 \(byte \d+\): not UTF-8"):
        read(path)


@pytest.mark.parametrize("block", [1, 2, 3, 2**18])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_lines_of_warc_may_end_with_lf_alone(
    line_end: bytes, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are those that warcio reads, whatever the size of blocks."""
    path, bodies = tmp_path / "a.wet", [b"one\r\n\r\ntwo", b"\nthree\n"]
    heads = [record("conversion", b"", b"", len(body)).replace(b"\r\n", line_end) for body in bodies]
    path.write_bytes(b"".join(head + body + 2 * line_end for head, body in zip(heads, bodies, strict=True)))
    with path.open("rb") as file:
        assert [one.content_stream().read() for one in ArchiveIterator(file)] == bodies
    blocks = [path.read_bytes()[at : at + block] for at in range(0, path.stat().st_size, block)]
    monkeypatch.setattr(warc, "read_blocks", lambda path: iter(blocks))
    assert read(path) == [(number, body.decode()) for number, body in enumerate(bodies)]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"<html>", "was cut off"),
        (b"x: y\r\n\r\n", "no WARC record begins here"),
        (record("conversion", b"a", length=0), "does not end where its Content-Length says"),
        (record("conversion", b"a", end=b"\r\n"), "was cut off"),
        (record("conversion", b"a", length=200), "was cut off"),
        (b"WARC/1.0\r\nWARC-Type: conversion\r\n\r\na\r\n\r\n", "has no Content-Length"),
    ],
)
def test_broken_warc_is_an_error_whatever_is_allowed(data: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "a.wet").write_bytes(data)
    with pytest.raises(DataError, match=complaint):
        read(tmp_path / "a.wet", max_bad_fraction=0.9)


def test_new_kinds_are_found_and_compressed_parquet_is_not(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.warc.wet.gz", "c.jsonl.xz", "d.parquet.gz", "e.wet"):
        (tmp_path / name).write_bytes(b"x")
    names = ["a.parquet", "b.warc.wet.gz", "c.jsonl.xz", "e.wet"]
    assert [path.name for path in find_inputs(str(tmp_path))] == names
    with pytest.raises(DataError, match="no known kind"):
        find_inputs(f"{tmp_path}/d.parquet.gz")


def test_a_share_is_less_than_all() -> None:
    with pytest.raises(ValueError, match="max_bad_fraction"):
        BuildConfig(input="a", output="b", max_bad_fraction=1)
