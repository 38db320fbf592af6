"""A Ray cluster that is not there: one sentence, in seconds, before any work. Without Ray itself."""

import dataclasses
import os
import socket
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.build.build import build
from data_pipeline.errors import DataError
from data_pipeline.executors import ray_cluster
from tests.helpers.datasets import Silent, settings


@pytest.fixture
def config(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "a.txt").write_text("Some text.\n\nAnd more.\n")
    return {"input": str(tmp_path / "a.txt"), "output": tmp_path / "out", "executor": "ray"}


def test_ray_that_is_not_installed_is_a_sentence(
    config: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DataError, match=r"needs Ray, which is not installed here: pip install 'pretrain\[ray\]'"):
        build(settings(**config), Silent)
    assert not list((tmp_path / ".out.building").glob("*/*.done.json"))


@pytest.mark.parametrize("by", ["the config", "the environment"])
def test_a_cluster_that_does_not_answer_is_a_sentence(
    by: str, config: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    if by == "the config":
        config["ray_address"] = address
    else:
        monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray_cluster, "_ray", lambda: types.SimpleNamespace(shutdown=lambda: None))
    began = time.monotonic()
    with pytest.raises(DataError, match=f"No Ray cluster answers at {address} .*refused.*ray start --head"):
        build(settings(**config), Silent)
    assert time.monotonic() - began < 60


def test_other_addresses_are_refused(monkeypatch: pytest.MonkeyPatch, config: dict[str, object]) -> None:
    monkeypatch.setattr(ray_cluster, "_ray", lambda: types.SimpleNamespace(shutdown=lambda: None))
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(DataError, match="ray://head:10001 is no address of a Ray cluster: give HOST:PORT"):
        build(settings(**config), Silent)


def test_what_a_node_does_not_see_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, read = tmp_path / "mark", tmp_path / "read"
    read.write_text("1234")
    monkeypatch.chdir(tmp_path)

    def wrong(versions: tuple[str, ...] = ("ftfy 6",), code: str = ray_cluster._code()) -> str | None:
        required = ray_cluster._NodeRequirements(
            mark=mark,
            token="x",
            work_dir=str(tmp_path),
            read=((str(read), 4),),
            find_versions=lambda: ["ftfy 6"],
            versions=versions,
            code=code,
        )
        return ray_cluster._node_problem(required)

    assert wrong() == f"does not see the folder {tmp_path}, which the build uses"
    mark.write_text("x")
    assert wrong() is None
    assert wrong(("ftfy 5",)) == "has ftfy 6, and this machine has ftfy 5"
    assert wrong(code="") == "has other code of pretrain than this machine"
    read.write_text("123")
    assert wrong() == f"does not see the file {read} as this machine does"


class OneNode:
    """Stands for Ray with a node whose storage is its own: it works on what it is given from another folder."""

    def __init__(self, there: Path) -> None:
        self._there = there
        anything = types.SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *_, **__: None)
        self.util = types.SimpleNamespace(scheduling_strategies=anything)
        self.exceptions = types.SimpleNamespace(RayError=RuntimeError)
        self.init = self.shutdown = lambda **_: None

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "1", "NodeManagerHostname": "far", "Alive": True, "Resources": {"CPU": 4.0}}]

    def remote(self, **_: Any) -> Callable[..., Any]:
        def made(function: Callable[..., Any]) -> Any:
            def call(required: ray_cluster._NodeRequirements) -> Any:
                return (function, dataclasses.replace(required, mark=self._there / required.mark.name))

            return types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=call))

        return made

    def wait(self, asked: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return asked, []

    def get(self, reference: tuple[Callable[..., Any], Any]) -> Any:
        return reference[0](reference[1])


@pytest.mark.parametrize("address", ["auto", None])
def test_storage_that_a_node_does_not_share_is_found_before_the_first_task(
    config: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "far").mkdir()
    monkeypatch.setattr(ray_cluster, "_ray", lambda: OneNode(tmp_path / "far"))
    with pytest.raises(
        DataError, match=f"^The Ray node far does not see the folder {tmp_path}/far, which .*; repair it"
    ):
        build(settings(**config, ray_address=address), Silent)
    assert not list((tmp_path / ".out.building").glob("*/*.done.json"))


def test_a_node_that_joins_later_is_asked_before_its_first_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a node works there: this restores the directory of the tests
    required = ray_cluster._NodeRequirements(
        mark=tmp_path / "no mark",
        token="x",
        work_dir=str(tmp_path),
        read=(),
        find_versions=tuple,
        versions=(),
        code=ray_cluster._code(),
    )
    done: list[int] = []
    with pytest.raises(DataError, match=f"does not see the folder {tmp_path}"):
        ray_cluster._run_on_node(required, done.append, 1)
    assert not done


@pytest.mark.parametrize(("workers", "cores"), [(3, 3), (None, len(os.sched_getaffinity(0)))])
def test_without_an_address_ray_is_started_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int | None, cores: int
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    asked: list[dict[str, Any]] = []
    ray = types.SimpleNamespace(init=lambda **given: asked.append(given) or 1 / 0, shutdown=lambda: None)  # type: ignore[func-returns-value]
    monkeypatch.setattr(ray_cluster, "_ray", lambda: ray)
    with (
        pytest.raises(DataError, match="The Ray cluster at local can't be joined"),
        ray_cluster.connected(None, workers, tmp_path, (), tuple),
    ):
        pass
    assert (asked[0]["address"], asked[0]["num_cpus"]) == ("local", cores)
