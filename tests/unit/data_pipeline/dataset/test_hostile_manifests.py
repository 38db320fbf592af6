"""Manifests, and files in place of one, that are damaged or made to harm: a DataError that names the file."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import MANIFEST
from data_pipeline.dataset.records import LIMIT_BYTES
from data_pipeline.errors import DataError
from tests.helpers.damaged import Edit, contents, edited, shard_of


def _set(*path: Any) -> Edit:
    """Sets the value at all but the last of `path` to the last."""
    *parents, key, value = path

    def edit(values: Any) -> None:
        for parent in parents:
            values = values[parent]
        values[key] = value

    return edit


def _shard(key: str, value: Any) -> Edit:
    return lambda values: shard_of(values).update({key: value})


def _member(number: int, **changes: Any) -> Edit:
    return lambda values: shard_of(values)["members"][number].update(changes)


def _over_another(values: dict[str, Any]) -> None:
    first, second = shard_of(values)["members"][:2]
    second["offset"] = first["offset"]


NAMES = ["../train-00000.tar", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "a\x00b", "a\nb", "\ud800", "x" * 1000]
EDITS: dict[str, Edit] = {
    **{f"shard {name!a:.20}": _shard("file", name) for name in NAMES},
    "tokenizer outside": _set("tokenizer", "file", "../tokenizer.model"),
    "counts outside": _set("unigram", "file", "/etc/hostname"),
    "2^60 tokens": _member(0, tokens=2**60),
    "2^2000 tokens": _member(0, tokens=2**2000),
    "no tokens": _member(0, tokens=0),
    "fewer tokens": _member(0, tokens=5),
    "negative offset": _member(0, offset=-512),
    "huge offset": _member(0, offset=2**49),
    "odd offset": lambda v: _member(0, offset=shard_of(v)["members"][0]["offset"] + 1)(v),
    "members over each other": _over_another,
    "members in another order": lambda v: shard_of(v)["members"].reverse(),
    "no members": _shard("members", []),
    "members of a wrong type": _shard("members", "none"),
    "a member of a wrong type": lambda v: shard_of(v)["members"].insert(0, 7),
    "tokens of a wrong type": _member(0, tokens="many"),
    "tokens of a half": _member(0, tokens=0.5),
    "no digest": _shard("sha256", "0"),
    "negative bytes": _shard("bytes", -1),
    "huge bytes": _shard("bytes", 2**62),
    "more documents": _shard("documents", 2**40),
    "no splits": _set("splits", {}),
    "one split": lambda v: v["splits"].pop("validation"),
    "an empty split": _set("splits", "train", {"documents": 0, "tokens": 0, "text_bytes": 0, "words": 0, "shards": []}),
    "another split": _set("splits", "../test", {}),
    "another dtype": _set("dtype", "object"),
    "uint32 for uint16": _set("dtype", "uint32"),
    "no format": lambda v: v.pop("format"),
    "a format that is a list": _set("format", [1]),
    "end of text outside": _set("tokenizer", "end_of_text", 300),
    "negative vocabulary": _set("tokenizer", "vocabulary", -5),
    "another vocabulary": _set("tokenizer", "vocabulary", 301),
    "NaN": _set("unigram", "bytes", float("nan")),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_manifest_that_lies_is_refused(copy: Path, name: str) -> None:
    edited(copy, EDITS[name])
    with pytest.raises(DataError, match=r"manifest\.json|train-00000\.tar|unigram\.npy"):
        contents(copy, verify=False)


CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"\x00" * 100,
    "not UTF-8": b'{"format": "\xff\xfe"}',
    "a list": b"[1]",
    "a number": b"1",
    "null": b"null",
    "deep lists": b"[" * 10**6,
    "deep mappings": b'{"a":' * 10**5 + b"1" + b"}" * 10**5,
    "a long number": b'{"format": ' + b"9" * 10**5 + b"}",
    "a wrong format": b'{"format": {"a": 1}}',
    "nothing else": b'{"format": 1}',
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_no_manifest_is_refused(copy: Path, name: str) -> None:
    (copy / MANIFEST).write_bytes(CONTENTS[name])
    with pytest.raises(DataError, match=r"manifest\.json"):
        Dataset(copy)


def test_depth_inside_a_field_is_refused_or_harmless(whole: Dataset, copy: Path) -> None:
    """Just below where the parser gives up, others could."""
    text = (copy / MANIFEST).read_text()
    for depth in (100, 900, 950, 980, 990):
        deep = "[" * depth + "]" * depth
        assert '"config": {' in text
        (copy / MANIFEST).write_text(text.replace('"config": {', f'"config": {{"a": {deep},', 1))
        with pytest.raises(DataError, match=r"manifest\.json"):
            Dataset(copy)


def test_a_gigabyte_of_manifest_is_not_read(copy: Path) -> None:
    os.truncate(copy / MANIFEST, 2**30)
    tracemalloc.start()
    with pytest.raises(DataError, match=rf"manifest\.json has more than the {LIMIT_BYTES:,} bytes"):
        Dataset(copy)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_manifest_that_is_a_pipe_or_a_directory_is_refused(copy: Path) -> None:
    (copy / MANIFEST).unlink()
    os.mkfifo(copy / MANIFEST)
    with pytest.raises(DataError, match=r"manifest\.json is not a file"):
        Dataset(copy)
    (copy / MANIFEST).unlink()
    (copy / MANIFEST).mkdir()
    with pytest.raises(DataError, match=r"manifest\.json is not a file"):
        Dataset(copy)


def test_links_out_of_the_directory_are_refused_and_links_to_all_of_it_are_not(
    whole: Dataset, copy: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(whole.directory)
    assert contents(tmp_path / "link", verify=True) == contents(whole.directory, verify=True)
    for name in ("train-00000.tar", "unigram.npy", "tokenizer.model"):
        (copy / name).rename(tmp_path / name)
        (copy / name).symlink_to(tmp_path / name)
        with pytest.raises(DataError, match=rf"{name} is a link out of the dataset's directory"):
            contents(copy, verify=True)
        (copy / name).unlink()
        (tmp_path / name).rename(copy / name)
    contents(copy, verify=True)
