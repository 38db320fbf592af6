"""Tasks on a Ray cluster, by Ray Core: a task is a function call on some node, and files are all that tasks exchange.

Ray starts a task again whose worker or node is gone. Ray is an extra: `pip install 'pretrain[ray]'`.
"""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from data_pipeline.common.hashing import digest_of, file_sha256
from data_pipeline.common.tasks import BuildTask, is_small
from data_pipeline.errors import DataError

_AHEAD = 4  # tasks that wait in line for each core: Ray's autoscaler starts nodes for those that wait
_RETRIES = 10  # of a task whose worker or node is gone
_REACH_S = 5.0  # to find that nobody listens at an address
_NODE_S = 600.0  # for a node to start a process and import what it needs


@dataclass(frozen=True, kw_only=True)
class _NodeRequirements:
    """Files and versions that every node must see exactly as this one does."""

    mark: Path
    """A file in the shared folder, written by the command."""
    token: str
    """The contents of `mark`."""
    work_dir: str
    """Working directory, for relative paths."""
    read: tuple[tuple[str, int], ...]
    """Some of the files that tasks read, with their sizes."""
    find_versions: Callable[[], Sequence[str]]
    versions: tuple[str, ...]
    """Versions of the libraries that results depend on: the result of `find_versions` on this node."""
    code: str
    """Digest of this package's code on this node."""


class RayExecutor:
    """Runs tasks on a Ray cluster. Made by `connected`, one per process at a time."""

    def __init__(self, ray: Any, required: _NodeRequirements, workers: int | None) -> None:
        self._ray, self._required, self._workers = ray, required, workers
        self._call = ray.remote(num_cpus=1, max_retries=_RETRIES, retry_exceptions=False)(_run_on_node)

    def cores_per_task(self, tasks: int) -> int:
        """One: each task requests one core from Ray."""
        return 1

    @property
    def max_pending(self) -> int:
        """The configured number of workers, or a multiple of the cluster's current cores."""
        return self._workers or _AHEAD * max(1, int(self._ray.cluster_resources().get("CPU", 0)))

    def accepts(self, tasks: Sequence[BuildTask]) -> bool:
        """True unless the tasks are small; also for a single task, since nodes may be larger than this machine."""
        return not is_small(tasks)

    def pool(self, tasks: int) -> concurrent.futures.Executor:
        """A pool of Ray's own processes, which Ray keeps across stages."""
        return _RayPool(self._ray, self._call, self._required)

    def check_nodes(self) -> None:
        """Raises DataError naming a node that does not see the same files as this one, or has other libraries."""
        ray = self._ray
        check = ray.remote(num_cpus=0, max_retries=_RETRIES)(_node_problem)
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        checks = {
            check.options(scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(self._required): node
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        }
        answered, silent = ray.wait(list(checks), num_returns=len(checks), timeout=_NODE_S)
        for reference in answered:
            try:
                wrong = ray.get(reference)
            except ray.exceptions.RayError as error:
                wrong = f"can't do a task ({_first_line(error)})"
            if wrong is not None:
                raise _node_error(checks[reference]["NodeManagerHostname"], wrong)
        if silent:
            name = checks[silent[0]]["NodeManagerHostname"]
            raise _node_error(name, f"has not answered within {_NODE_S:g} s")


class _RayPool(concurrent.futures.Executor):
    """The futures of one stage's tasks."""

    def __init__(self, ray: Any, call: Any, required: _NodeRequirements) -> None:
        self._ray, self._call, self._required = ray, call, required
        self._under_way: dict[Future[Any], Any] = {}
        self._lock = threading.Lock()  # futures end in a thread of Ray's

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """See `concurrent.futures`. The future raises the exception that the task raised."""
        reference, found = self._call.remote(self._required, work, *arguments, **named), Future[Any]()
        with self._lock:
            self._under_way[found] = reference

        def ended(theirs: Future[Any]) -> None:
            with self._lock:
                del self._under_way[found]
            error = theirs.exception()
            if error is None:
                found.set_result(theirs.result())
            else:
                found.set_exception(self._in_words(error))

        reference.future().add_done_callback(ended)
        return found

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `concurrent.futures`. Running tasks may be cancelled, too, since repeating them gives the same
        results."""
        with self._lock:
            left = dict(self._under_way)
        for reference in left.values() if cancel_futures else ():
            self._ray.cancel(reference)
        if wait:
            concurrent.futures.wait(left)

    def _in_words(self, error: BaseException) -> BaseException:
        exceptions = self._ray.exceptions
        if isinstance(error, exceptions.RayTaskError):
            return error.cause  # type: ignore[no-any-return]
        if isinstance(error, exceptions.RayError):
            return DataError(
                f"The Ray cluster gave a task up after {_RETRIES} tries ({_first_line(error)}): look at its nodes' "
                "memory and logs, and start again: what is done is kept."
            )
        return error


@contextmanager
def connected(
    address: str | None,
    workers: int | None,
    folder: Path,
    read: Sequence[Path],
    find_versions: Callable[[], Sequence[str]],
) -> Iterator[RayExecutor]:
    """Joins a cluster whose nodes all see `folder` and the files `read`, and have the same versions; leaves it at the
    end.

    `address` is the config's. Raises DataError when Ray is not installed, the cluster can't be reached, or a node
    differs from this one.
    """
    ray = _ray()
    _join(ray, address or os.environ.get("RAY_ADDRESS") or "local", workers)
    mark = folder / f"seen-{uuid.uuid4().hex}"
    try:
        sizes = tuple((str(path), path.stat().st_size) for path in read)
        required = _NodeRequirements(
            mark=mark.absolute(),
            token=mark.name,
            work_dir=str(Path.cwd()),
            read=sizes,
            find_versions=find_versions,
            versions=tuple(find_versions()),
            code=_code(),
        )
        mark.write_text(required.token)
        cluster = RayExecutor(ray, required, workers)
        cluster.check_nodes()
        yield cluster
    finally:
        mark.unlink(missing_ok=True)
        ray.shutdown()


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a build tells nobody that it runs
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray's next version does; else it warns
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise DataError(
            "executor: ray needs Ray, which is not installed here: pip install 'pretrain[ray]' on every node, or use "
            "another executor."
        ) from None
    return ray


def _join(ray: Any, address: str, workers: int | None) -> None:
    """Joins the cluster. Raises DataError when it can't be reached or joined."""
    _check_reached(address)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        quiet |= {"include_dashboard": False, "num_cpus": workers or len(os.sched_getaffinity(0))}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ray.init(address=address, **quiet)
    except (Exception, SystemExit) as error:
        raise DataError(
            f"The Ray cluster at {address} can't be joined ({_first_line(error)}): `ray status --address {address}` "
            "must work on this machine, with the same versions of Ray and Python on all."
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray has put its own in their place
                signal.signal(number, handler)


def _check_reached(address: str) -> None:
    """Raises DataError within seconds when nothing listens at `address`; Ray itself would take minutes."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    if not port.isdecimal() or "/" in host:
        raise DataError(f"{address} is no address of a Ray cluster: give HOST:PORT, as `ray start` prints it.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except (OSError, OverflowError) as error:
        raise DataError(
            f"No Ray cluster answers at {address} ({error}): start one with `ray start --head`, or correct ray_address "
            "or RAY_ADDRESS."
        ) from None


def _run_on_node(required: _NodeRequirements, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Task: runs `work` on a node, which may have joined after the other nodes were checked."""
    wrong = _node_problem_once(required)
    if wrong is not None:
        raise _node_error(socket.gethostname(), wrong)
    return work(*arguments, **named)


def _node_problem(required: _NodeRequirements) -> str | None:
    """Task: what is wrong with this node, as the rest of a sentence that begins with its name; None: nothing."""
    try:
        os.chdir(required.work_dir)
        token = required.mark.read_text()
    except OSError:
        token = ""
    if token != required.token:
        return f"does not see the folder {required.mark.parent}, which the build uses"
    for path, size in required.read:
        if not os.path.isfile(path) or os.path.getsize(path) != size:
            return f"does not see the file {path} as this machine does"
    for here, there in zip(required.versions, required.find_versions(), strict=True):
        if here != there:
            return f"has {there}, and this machine has {here}"
    if _code() != required.code:
        return "has other code of pretrain than this machine"
    return None


@cache
def _node_problem_once(required: _NodeRequirements) -> str | None:
    return _node_problem(required)


def _code() -> str:
    """Digest of all modules of this package."""
    package = Path(__file__).parents[1]
    return digest_of([[str(path.relative_to(package)), file_sha256(path)] for path in sorted(package.rglob("*.py"))])


def _node_error(name: str, wrong: str) -> DataError:
    return DataError(f"The Ray node {name} {wrong}; repair it or take it out of the cluster, and start again.")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
