"""The cache of remote datasets: bounded, least recently used goes first, safe to share, and never trusted blindly."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.dataset.cache import Cache, default_folder
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from tests.helpers.http_store import serve

SIZE = 1000


def piece(number: int) -> tuple[str, bytes]:
    data = number.to_bytes(4, "little") * (SIZE // 4)
    return hashlib.sha256(data).hexdigest(), data


def held(cache: Cache) -> set[str]:
    return {path.name for path in cache.folder.glob("pieces/*/*")}


def get(cache: Cache, number: int, calls: list[int] | None = None) -> bytes:
    digest, data = piece(number)

    def fetch() -> bytes:
        if calls is not None:
            calls.append(number)
        return data

    return bytes(cache.get(digest, len(data), fetch))


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 4 * SIZE)
    for number in range(4):
        get(cache, number)
    get(cache, 0)  # used again
    get(cache, 4)
    names = [piece(number)[0] for number in range(5)]
    assert held(cache) == {names[n] for n in (0, 2, 3, 4)}


def test_hits_and_bound_are_those_of_a_plain_model(tmp_path: Path) -> None:
    cache, draw = Cache(tmp_path, 5 * SIZE), random.Random(0)
    model: list[int] = []  # by last use
    for _ in range(300):
        number, calls = draw.randrange(9), list[int]()
        assert get(cache, number, calls) == piece(number)[1]
        assert calls == ([] if number in model else [number])
        if number in model:
            model.remove(number)
        elif len(model) == 5:
            del model[:1]
        model.append(number)
        assert held(cache) == {piece(n)[0] for n in model}
        assert sum(path.stat().st_size for path in tmp_path.glob("pieces/*/*")) <= cache.limit_bytes


def test_a_piece_that_goes_while_it_is_mapped_stays_readable(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2 * SIZE)
    get(cache, 0)
    digest, data = piece(0)
    mapped = cache.get(digest, SIZE, lambda: pytest.fail("it is there"))
    for number in range(1, 4):
        get(cache, number)
    assert digest not in held(cache)
    assert mapped[:] == data


def test_a_damaged_or_short_file_is_fetched_again(tmp_path: Path) -> None:
    get(Cache(tmp_path), 0)
    (path,) = tmp_path.glob("pieces/*/*")
    for damaged in (b"x" * SIZE, piece(0)[1][:-1], b""):
        path.write_bytes(damaged)
        calls: list[int] = []
        again = Cache(tmp_path)  # a restart
        assert get(again, 0, calls) == piece(0)[1]
        assert calls == [0]
        assert path.read_bytes() == piece(0)[1]
    calls = []
    get(Cache(tmp_path), 0, calls)
    assert not calls


def test_one_of_many_threads_fetches(tmp_path: Path) -> None:
    cache, calls = Cache(tmp_path), list[int]()

    def slow(number: int) -> None:
        digest, data = piece(number)

        def fetch() -> bytes:
            calls.append(number)
            time.sleep(0.05)
            return data

        assert bytes(cache.get(digest, SIZE, fetch)) == data

    threads = [threading.Thread(target=slow, args=(number % 3,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(calls) == [0, 1, 2]


def _churn(folder: Path, seed: int) -> int:
    """Uses pieces at random; the most bytes that were seen in the folder, -1 for a wrong piece."""
    cache, draw, most = Cache(folder, 5 * SIZE), random.Random(seed), 0
    for _ in range(60):
        number = draw.randrange(12)
        if get(cache, number) != piece(number)[1]:
            return -1
        most = max(most, sum(1 for _ in folder.glob("pieces/*/*")) * SIZE)
    return most


def test_the_bound_holds_when_processes_share_the_folder(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        most = pool.starmap(_churn, [(tmp_path, seed) for seed in range(2)])
    # A look at a folder that changes may count one that has just gone and one that has just come.
    assert all(0 < size <= 7 * SIZE for size in most)
    assert len(held(Cache(tmp_path))) <= 5


def test_a_total_that_a_crash_left_wrong_is_mended(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 4 * SIZE)
    get(cache, 0)
    for total in (b"999999999", b"", b"nonsense"):
        (tmp_path / "total").write_bytes(total)
        get(cache, 0)
        get(cache, 1)
        for path in tmp_path.glob("pieces/*/*"):
            path.unlink()
        get(cache, 2)
        get(cache, 3)
        assert {piece(3)[0]} <= held(cache)
    assert int((tmp_path / "total").read_bytes()) <= 4 * SIZE


@pytest.mark.parametrize("limit_bytes", [1, 3000])
def test_a_cache_too_small_for_a_batch_works_and_says_so_once(
    dataset: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str], limit_bytes: int
) -> None:
    starts = np.arange(0, 10_000, 100)
    with serve(dataset.directory) as store:
        remote = Dataset(store.url, Cache(tmp_path, limit_bytes))
        for _ in range(2):
            assert np.array_equal(remote.read("train", starts, 50), dataset.read("train", starts, 50))
    assert sum(path.stat().st_size for path in tmp_path.glob("pieces/*/*")) <= limit_bytes
    assert capfd.readouterr().err.count("warning: one batch needs") == 1


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"The cache .*file.* can't be used .*set data.cache_dir"):
        get(Cache(tmp_path / "file"), 0)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(DataError, match=r"The disk of the cache .* is full; make room"):
        get(Cache(tmp_path / "full"), 0)


def test_the_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "pretrain"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification has ignored
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "home" / ".cache" / "pretrain"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == tmp_path / "home" / ".cache" / "pretrain"
    assert os.listdir(tmp_path) == []
