"""Dataset directories that are damaged or made to harm: a DataError that names the file, or the result as it was.

Nothing outside of the directory is read or written, and what a file claims about itself allocates nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.common.hashing import digest_of
from data_pipeline.dataset.cache import Cache
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import MANIFEST, SPLITS
from data_pipeline.dataset.records import LIMIT_BYTES
from data_pipeline.dataset.shards import npy_vector
from data_pipeline.errors import DataError
from tests.helpers.datasets import build_dataset, make_documents
from tests.helpers.http_store import serve

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A small one, since it is damaged hundreds of times."""
    documents = make_documents(0, 60)
    changes = {"member_tokens": 600, "shard_tokens": 1500, "tokenizer": {"vocabulary": 300}}
    return build_dataset(documents, tmp_path_factory.mktemp("whole"), **changes)


@pytest.fixture
def copy(whole: Dataset, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.directory, tmp_path / "copy"))


def contents(path: Path, verify: bool) -> str:
    """A digest of all that can be had from a dataset."""
    opened = Dataset(path)
    if verify:
        opened.verify()
        opened.tokenizer()
    counts = opened.unigram_counts().tolist()
    found: list[Any] = [opened.identity, counts, opened.manifest.model_dump(mode="json")]
    for split in SPLITS:
        found.append(opened.window(split, 0, opened.num_tokens(split)).tolist())
        found.append(opened.starts(split).tolist())
        found.append([[record, tokens.tolist()] for record, tokens in opened.documents(split)])
    return digest_of(found)


def edited(copy: Path, edit: Edit) -> None:
    """The manifest with a change, as one who means harm would write it: without the checksum."""
    values = json.loads((copy / MANIFEST).read_text())
    del values["checksum"]
    edit(values)
    (copy / MANIFEST).write_text(json.dumps(values))


def shard_of(values: dict[str, Any]) -> dict[str, Any]:
    shard: dict[str, Any] = values["splits"]["train"]["shards"][0]
    return shard


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
    with pytest.raises(DataError, match=r"manifest\.json is no file"):
        Dataset(copy)
    (copy / MANIFEST).unlink()
    (copy / MANIFEST).mkdir()
    with pytest.raises(DataError, match=r"manifest\.json is no file"):
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


def _header(entry: tarfile.TarInfo) -> bytes:
    return entry.tobuf(tarfile.USTAR_FORMAT)


def _entry(head: bytes, number: int) -> tuple[int, tarfile.TarInfo]:
    """(place of the header, entry) of a file of the shard."""
    with tarfile.open(fileobj=io.BytesIO(head)) as tar:
        entry = tar.getmembers()[number]
        return entry.offset, entry


def _renamed(name: str) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        for number, suffix in ((0, "documents.json"), (1, "starts.npy")):
            place, entry = _entry(data, number)
            entry.name = f"{name}.{suffix}"
            data = data[:place] + _header(entry) + data[place + 512 :]
        return data

    return change


@pytest.mark.parametrize("name", ["../../../escaped", "/var/escaped", "a/../../b", "\udcff"])
def test_names_in_a_tar_lead_nowhere(whole: Dataset, copy: Path, tmp_path: Path, name: str) -> None:
    path = copy / "train-00000.tar"
    path.write_bytes(_renamed(name)(path.read_bytes()))
    before = sorted(tmp_path.rglob("*"))
    assert contents(copy, verify=False) == contents(whole.directory, verify=False)
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/var/escaped.starts.npy").exists()
    with pytest.raises(DataError, match=r"train-00000\.tar is damaged"):
        contents(copy, verify=True)


def _with_entry(number: int, **changes: Any) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        place, entry = _entry(data, number)
        for key, value in changes.items():
            setattr(entry, key, value)
        return data[:place] + entry.tobuf(tarfile.GNU_FORMAT)[:512] + data[place + 512 :]

    return change


def _with_body(number: int, body: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        place, entry = _entry(data, number)
        begin = place + 512
        new = body(data[begin : begin + entry.size])[: entry.size].ljust(entry.size, b" ")
        return data[:begin] + new + data[begin + entry.size :]

    return change


def _starts(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[bytes], bytes]:
    def body(data: bytes) -> bytes:
        stream = io.BytesIO()
        np.save(stream, change(npy_vector(data).copy()))
        return stream.getvalue()

    return _with_body(1, body)


def _npy_claims(shape: str) -> Callable[[bytes], bytes]:
    def body(data: bytes) -> bytes:
        count = (len(data) - 128) // 8
        header = data[10:127].replace(f"({count},)".encode(), shape.encode()).rstrip()
        return data[:10] + header.ljust(117) + data[127:]

    return _with_body(1, body)


TARS: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: random.Random(0).randbytes(len(data)),
    "a link": _with_entry(0, type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a directory": _with_entry(0, type=tarfile.DIRTYPE),
    "a long name that follows": _with_entry(0, type=tarfile.GNUTYPE_LONGNAME),
    "extended headers": _with_entry(0, type=tarfile.XHDTYPE),
    "negative size": _with_entry(0, size=-512),
    "huge size": _with_entry(1, size=2**60),
    "other files": _with_entry(0, name="a.txt"),
    "other checksum": lambda data: b"x" + data[1:],
    "records no JSON": _with_body(0, lambda body: b"x"),
    "records not UTF-8": _with_body(0, lambda body: b'["\xff\xfe"]'),
    "deep records": _with_body(0, lambda body: b"[" * len(body)),
    "records a number": _with_body(0, lambda body: b"7"),
    "records of numbers": _with_body(0, lambda body: b"[7]"),
    "too few records": _with_body(0, lambda body: b"[{}]"),
    "starts of objects": _with_body(1, lambda body: body.replace(b"'<i8'", b"'|O' ")),
    "starts of floats": _with_body(1, lambda body: body.replace(b"'<i8'", b"'<f8'")),
    "2^60 starts": _npy_claims(f"({2**60},)"),
    "negative number of starts": _npy_claims("(-1,)"),
    "starts descend": _starts(lambda starts: starts[::-1].copy()),
    "starts repeat": _starts(lambda starts: starts * 0),
    "starts beyond": _starts(lambda starts: starts * 10**6),
    "starts negative": _starts(lambda starts: -starts),
}


@pytest.mark.parametrize("name", TARS)
def test_a_damaged_tar_of_the_right_size_is_named(copy: Path, name: str) -> None:
    path = copy / "train-00000.tar"
    data = path.read_bytes()
    changed = TARS[name](data)
    assert len(changed) == len(data)
    assert changed != data
    path.write_bytes(changed)
    tracemalloc.start()
    for verify in (False, True):
        with pytest.raises(DataError, match=r"train-00000\.tar is damaged"):
            contents(copy, verify)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_tokens_beyond_the_vocabulary_are_refused_though_all_digests_hold(whole: Dataset, copy: Path) -> None:
    """A model would read beyond its embeddings, which ends a GPU's process without a word."""
    manifest = whole.manifest
    shard = manifest.splits["train"].shards[0]
    member = shard.members[-1]
    data = bytearray((copy / shard.file).read_bytes())
    data[member.offset : member.offset + 2] = (300).to_bytes(2, "little")
    (copy / shard.file).write_bytes(data)
    tokens = bytes(data[member.offset : member.offset + 2 * member.tokens])

    def edit(values: dict[str, Any]) -> None:
        shard_of(values)["sha256"] = hashlib.sha256(data).hexdigest()
        shard_of(values)["members"][-1]["sha256"] = hashlib.sha256(tokens).hexdigest()
        shards = {name: [shard["sha256"] for shard in values["splits"][name]["shards"]] for name in SPLITS}
        record = values["tokenizer"]
        values["identity"] = digest_of({"tokenizer": record["identity"], "dtype": values["dtype"], "shards": shards})

    edited(copy, edit)
    with pytest.raises(DataError, match=r"train-00000\.tar has tokens beyond the 300 of its tokenizer"):
        Dataset(copy).verify()
    with serve(copy) as store:
        remote = Dataset(store.url, Cache(copy.parent / "cache"))
        with pytest.raises(DataError, match=r"train-00000\.tar has tokens beyond the 300 of its tokenizer"):
            remote.window("train", 0, shard.tokens)


def _mutation(data: bytes, draw: random.Random) -> bytes:
    kind, place = draw.randrange(4), draw.randrange(len(data))
    if kind == 0:
        return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]
    if kind == 1:
        return data[:place] + draw.randbytes(draw.randrange(1, 20)) + data[place + 19 :]
    if kind == 2:
        return data[:place]
    return data[:place] + data[place + draw.randrange(1, 100) :]


@pytest.mark.parametrize("name", [MANIFEST, "train-00000.tar", "validation-00000.tar", "unigram.npy"])
def test_random_damage_is_an_error_or_changes_nothing(whole: Dataset, copy: Path, name: str) -> None:
    draw, expected = random.Random(name), contents(whole.directory, verify=True)
    data = (copy / name).read_bytes()
    errors = []
    for _ in range(75):
        (copy / name).write_bytes(_mutation(data, draw))
        try:
            assert contents(copy, verify=True) == expected
        except DataError as error:
            errors.append(str(error))
    assert len(errors) > 60
    assert all(name.split(".")[0] in error for error in errors)


def test_random_damage_without_verify_is_never_another_error(copy: Path) -> None:
    """Tokens may then be others, as nothing compares them."""
    path, draw = copy / "train-00000.tar", random.Random(1)
    data = path.read_bytes()
    shard = Dataset(copy).manifest.splits["train"].shards[0]
    errors = []
    for _ in range(75):
        begin, end = shard.head(draw.randrange(len(shard.members)), 2)
        place = draw.randrange(begin, end)
        path.write_bytes(data[:place] + draw.randbytes(1) + data[place + 1 :])
        try:
            contents(copy, verify=False)
        except DataError as error:
            errors.append(str(error))
    assert len(errors) > 10
    assert all("train-00000.tar" in error for error in errors)


def test_random_damage_of_the_numbers_in_a_manifest_without_checksum(copy: Path) -> None:
    """No identity covers places and counts: whatever they say, reading stays inside and ends in a DataError at most."""
    draw, errors = random.Random(2), []
    values = json.loads((copy / MANIFEST).read_text())
    del values["checksum"]
    for _ in range(75):
        damaged = json.loads(json.dumps(values))
        place: Any = damaged["splits"][draw.choice(SPLITS)]["shards"][0]
        place = draw.choice([place, place["members"][-1]])
        key = draw.choice([key for key, value in place.items() if isinstance(value, int)])
        place[key] = draw.choice([0, 1, -1, 2**31, 2**63, 2**64, place[key] + 1, place[key] - 1, place[key] * 2])
        (copy / MANIFEST).write_text(json.dumps(damaged))
        try:
            contents(copy, verify=False)
        except DataError as error:
            errors.append(str(error))
    assert len(errors) > 60
    assert all("manifest.json" in error or ".tar" in error for error in errors)
