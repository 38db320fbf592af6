"""Which failures of a store are tried again, how often, and what is said in the end."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_pipeline.dataset import storage
from data_pipeline.dataset.cache import Cache
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import MANIFEST
from data_pipeline.errors import DataError
from tests.helpers.http_store import Fault, HttpStore

LENGTH = 64
ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("fault", "expected_waits"),
    [(503, [0.5, 1.0]), (429, [0.5, 1.0]), (500, [0.5, 1.0]), ("cut", [0.5, 1.0]), ("reset", [0.5])],
)  # after a reset aiohttp tries once more by itself
def test_transient_errors_are_retried(
    dataset: Dataset, store: HttpStore, cache: Cache, waits: list[float], fault: Any, expected_waits: list[float]
) -> None:
    remote = Dataset(store.url, cache)
    first = dataset.manifest.splits["train"].shards[0]
    store.fault = lambda file, number: fault if number < 2 else None
    expected = dataset.window("train", 0, first.members[0].tokens)
    assert np.array_equal(remote.window("train", 0, first.members[0].tokens), expected)
    assert store.counts[first.file] == 3
    assert waits == expected_waits


WRONG: tuple[Fault, ...] = ("short", "closed", "chunked", "whole", "flip")


@pytest.mark.parametrize("fault", WRONG)
def test_one_wrong_answer_is_asked_for_again(
    dataset: Dataset, store: HttpStore, cache: Cache, waits: list[float], fault: Fault
) -> None:
    store.fault = lambda file, number: fault if number == 0 else None
    remote = Dataset(store.url, cache)
    shard, manifest = dataset.manifest.splits["train"].shards[0], dataset.manifest
    count = shard.members[0].tokens
    assert np.array_equal(remote.window("train", 0, count), dataset.window("train", 0, count))
    assert remote.tokenizer().identity == dataset.tokenizer().identity
    small = [MANIFEST, *(file.file for file in manifest.small_files)]
    once = set(small) if fault == "whole" else set[str]()  # for them it is what was asked for
    assert {file: store.counts[file] for file in [shard.file, *small]} == {
        file: 2 - (file in once) for file in [shard.file, *small]
    }
    assert waits == [0.5] * (1 + len(small) - len(once))


def test_wrong_answers_that_differ_are_asked_for_again(
    dataset: Dataset, store: HttpStore, cache: Cache, waits: list[float]
) -> None:
    remote = Dataset(store.url, cache)
    faults: list[Fault | None] = ["short", "chunked", "whole", "flip", None]
    store.fault = lambda file, number: faults[number]
    assert np.array_equal(remote.window("train", 0, 10), dataset.window("train", 0, 10))
    assert waits == [0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize("file", [MANIFEST, "tokenizer.model", "train-00000.tar"])
def test_a_file_is_called_damaged_when_two_answers_agree(
    store: HttpStore, cache: Cache, waits: list[float], file: str
) -> None:
    faults: list[Fault] = ["flip", "short", "flip"]
    store.fault = lambda asked, number: faults[number] if asked == file else None
    with pytest.raises(DataError, match=rf"{store.url}/{file} (is no dataset's manifest|don't match the manifest's)"):
        Dataset(store.url, cache).window("train", 0, 10)
    assert store.counts[file] == 3


def test_what_no_two_answers_agree_on_is_given_up(
    store: HttpStore, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage_ = storage.Storage(store.url)
    answers = iter(range(6))
    monkeypatch.setattr(storage_, "_requested", lambda *_: bytes([next(answers)]))
    with pytest.raises(DataError, match=r"x can't be read .*never the same ones twice; tried 6 times"):
        storage_.read("x", 0, 1, "0" * 64)


def test_a_wrong_size_and_a_wrong_digest_are_asked_for_again(
    dataset: Dataset, store: HttpStore, cache: Cache, waits: list[float]
) -> None:
    remote = Dataset(store.url, cache)
    store.fault = lambda file, number: "flip" if number == 0 else None
    remote.verify()
    shards = [shard for split in dataset.manifest.splits.values() for shard in split.shards]
    assert waits == [0.5] * len(shards)
    sizes = iter([7, 9, 9])
    there = storage.Storage(store.url)
    there._files = SimpleNamespace(invalidate_cache=lambda: None, info=lambda path: {"size": next(sizes)})
    there.check_size("x", 9)
    with pytest.raises(StopIteration):
        next(sizes) and next(sizes)


def test_a_server_that_falls_silent_is_given_up_and_tried_again(
    dataset: Dataset, store: HttpStore, cache: Cache, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_SILENCE_S", 1.0)  # less, and a busy machine is silent too
    remote = Dataset(store.url, cache)
    store.fault = lambda file, number: "silent" if number == 0 else None
    assert np.array_equal(remote.window("train", 0, 10), dataset.window("train", 0, 10))
    assert store.counts["train-00000.tar"] == 2
    assert waits == [0.5]


@pytest.mark.parametrize("status", [403, 401, 404])
def test_what_will_not_pass_is_not_tried_again(store: HttpStore, cache: Cache, waits: list[float], status: int) -> None:
    remote = Dataset(store.url, cache)
    store.fault = lambda file, number: status
    with pytest.raises(DataError, match=rf"{store.url}/train-00000.tar.*(is missing|{status})"):
        remote.window("train", 0, 10)
    assert store.counts["train-00000.tar"] == 1
    assert not waits


@pytest.mark.parametrize("status", [403, 405])
def test_a_server_that_answers_no_head_requests_will_do(
    dataset: Dataset, store: HttpStore, cache: Cache, waits: list[float], status: int
) -> None:
    store.head_status = status
    assert np.array_equal(*(d.window("train", 0, d.num_tokens("train")) for d in (Dataset(store.url, cache), dataset)))
    store.fault = lambda file, number: 403
    with pytest.raises(DataError, match=rf"{store.url}/manifest.json can't be read .*403.*tried once"):
        Dataset(store.url, cache)
    assert not waits


def test_tries_end_with_an_error_that_says_how_often(store: HttpStore, cache: Cache, waits: list[float]) -> None:
    remote = Dataset(store.url, cache)
    store.fault = lambda file, number: 503
    with pytest.raises(DataError, match=rf"bytes [\d,]+ to [\d,]+ of {store.url}/train-00000.tar.*503.*tried 6 times"):
        remote.window("train", 0, 10)
    assert store.counts["train-00000.tar"] == 6
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_a_server_that_is_not_there_is_named(cache: Cache, waits: list[float]) -> None:
    with pytest.raises(DataError, match=r"http://127.0.0.1:1/set/manifest.json.*tried 6 times"):
        Dataset("http://127.0.0.1:1/set", cache)


def _named(name: str, base: type[Exception] = Exception, **values: object) -> Exception:
    """An error as a package that may not be here raises it."""
    error = type(name, (base,), {})("no")
    vars(error).update(values)
    return error


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (OSError(errno.EBUSY, "SlowDown"), True),  # s3fs
        (PermissionError(errno.EACCES, "Forbidden"), False),
        (FileNotFoundError("x"), False),
        (_named("ReadTimeoutError", type("HTTPClientError", (Exception,), {})), True),  # botocore
        (_named("HttpError", code=503), True),  # gcsfs
        (_named("HttpError", code="429"), True),
        (_named("HttpError", code=403), False),
        (_named("ClientResponseError", status=416), False),
        (ValueError("x"), False),
    ],
)
def test_which_errors_are_transient(error: Exception, transient: bool) -> None:
    assert storage.is_transient(error) == transient


def test_waits_double_up_to_a_bound_and_have_no_random_part() -> None:
    retries = storage.Retries(first_wait_s=1, longest_wait_s=5)
    assert [retries.wait_s(n) for n in range(1, 6)] == [1, 2, 4, 5, 5]
