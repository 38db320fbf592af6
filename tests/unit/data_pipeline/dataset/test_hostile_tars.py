"""Tars that are damaged or made to harm: a DataError that names the file. Nothing outside of the directory is read or
written, and what a file claims about itself allocates nothing."""

from __future__ import annotations

import hashlib
import io
import random
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
from data_pipeline.dataset.manifest import SPLITS
from data_pipeline.dataset.shard_writer import npy_vector
from data_pipeline.errors import DataError
from tests.helpers.damaged import contents, edited, shard_of
from tests.helpers.http_store import serve


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
