"""Ranks tell each other what they were started with, before anything of the run is built.

Each leaves a digest of its statement in the store where they meet, and rank 0 compares them: 64 bytes a rank, whatever
the statement. Only ranks that differ from rank 0 leave the whole of it, from which rank 0 makes one sentence for all.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

from pretrain.errors import ConfigError, RunError
from pretrain.process.place import ranks_in_words as _ranks

ERROR, STATUS = "error", "status"
"""what a rank says that has found a mistake of its own, and the exit status that goes with it"""
_MOST_KEYS = 5  # named in a sentence
_GOODBYE = timedelta(seconds=10)  # for the others to hear the verdict, before rank 0 takes the store with it


class NotMetError(RunError):
    """Other ranks have not come, so that none of them knows of it."""


class Store(Protocol):
    """What is used of torch.distributed's."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...
    def check(self, keys: list[str], /) -> bool: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...


def agree(store: Store, rank: int, world: int, said: Mapping[str, object], timeout_s: float) -> None:
    """Raises one ConfigError on every rank if what any of them `said`, as plain values by key, differs; or with what
    one has said under ERROR (with STATUS 1: a RunError). Raises NotMetError where ranks don't come within `timeout_s`.
    Collective."""
    statement = json.dumps(said, sort_keys=True, default=str)
    digest = hashlib.sha256(statement.encode()).hexdigest()
    timeout = timedelta(seconds=timeout_s)
    if rank == 0:
        store.set("first", digest)
    else:
        _wait(store, ["first"], timeout, "rank 0 has not come")
        if store.get("first").decode() != digest:
            store.set(f"said/{digest}", statement)
    store.set(f"digest/{rank}", digest)
    if rank == 0:
        keys = [f"digest/{number}" for number in range(world)]
        _wait(store, keys, timeout, "not all ranks have come")
        digests = [found.decode() for found in store.multi_get(keys)]
        statements = {digest: dict(said)} | {
            other: json.loads(store.get(f"said/{other}")) for other in dict.fromkeys(digests) if other != digest
        }
        store.set("verdict", json.dumps(_verdict(digests, statements)))
    _wait(store, ["verdict"], timeout, "rank 0 is gone")
    verdict = json.loads(store.get("verdict"))
    if verdict is None:
        return
    store.set(f"heard/{rank}", "")
    if rank == 0:
        with suppress(RuntimeError):  # one is gone: the verdict stands
            store.wait([f"heard/{number}" for number in range(world)], _GOODBYE)
    sentence, status = verdict
    raise RunError(sentence) if status == RunError.exit_status else ConfigError(sentence)


def plain(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """A tree of mappings as one of dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= plain(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found


def _verdict(digests: list[str], statements: Mapping[str, Mapping[str, Any]]) -> tuple[str, int] | None:
    """A sentence and an exit status; None where all is well. `digests`: of each rank, in order."""
    ranks_of = {digest: [rank for rank, own in enumerate(digests) if own == digest] for digest in statements}
    wrong = next((digest for digest in statements if ERROR in statements[digest]), None)
    if wrong is not None:
        said, ranks = statements[wrong], ranks_of[wrong]
        where = "" if len(ranks) == len(digests) else f"{_ranks(ranks)} of {len(digests)}: "
        return f"{where}{said[ERROR]}", int(said[STATUS])
    if len(statements) == 1:
        return None
    differences = []
    for key in dict.fromkeys(key for said in statements.values() for key in said):
        values: dict[str, list[int]] = {}
        for digest, said in statements.items():
            values.setdefault(str(said.get(key, "absent"))[:100], []).extend(ranks_of[digest])
        if len(values) > 1:
            ways = (f"{value} on {_ranks(sorted(ranks))}" for value, ranks in values.items())
            differences.append(f"{key} is {' and '.join(ways)}")
    more = len(differences) - _MOST_KEYS
    named = "; ".join(differences[:_MOST_KEYS]) + (f"; and {more} more differ" if more > 0 else "")
    return f"ranks were not started alike: {named}. Start all with one command, code and data", ConfigError.exit_status


def _wait(store: Store, keys: list[str], timeout: timedelta, problem: str) -> None:
    try:
        store.wait(keys, timeout)
    except RuntimeError:
        missing = [int(key.partition("/")[2]) for key in keys if "/" in key and not store.check([key])]
        who = f"{_ranks(missing)} of {len(keys)} have" if missing else "it has"
        raise NotMetError(
            f"{problem}: {who} not said anything within {timeout.total_seconds():g} s (health.timeout_s): "
            "look for what they printed, and start all ranks again"
        ) from None
