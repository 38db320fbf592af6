"""Comparison of what ranks were started with, before anything of the run is built.

Each rank leaves a digest of its facts in the rendezvous store, and rank 0 compares them: 64 bytes per rank, however
large the facts are. Only ranks that differ from rank 0 leave all facts, from which rank 0 makes one error for all.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from pretrain.errors import ConfigError, RunError
from pretrain.process.deadline import Deadline
from pretrain.process.rank_location import format_ranks

ERROR, STATUS = "error", "status"
"""Keys of an error that a rank has found by itself, and of its exit status."""
_GONE = "rank 0 was met and is gone before all ranks had come"
_MOST_KEYS = 5  # named in a sentence
_GOODBYE = timedelta(seconds=10)  # for the others to hear the verdict, before rank 0 takes the store with it


class RendezvousError(RunError):
    """Ranks are missing at the rendezvous."""


class Store(Protocol):
    """Methods of torch.distributed.Store that are used here."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...
    def check(self, keys: list[str], /) -> bool: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...


def check_ranks_agree(store: Store, rank: int, world: int, facts: Mapping[str, object], deadline: Deadline) -> None:
    """Raises one ConfigError on every rank if their `facts` (JSON values by key) differ, or if one has an ERROR (with
    STATUS 1: a RunError). Raises RendezvousError if ranks are missing when `deadline` expires; until then rank 0
    reports from time to time which ones it waits for. Collective."""
    facts_json = json.dumps(facts, sort_keys=True, default=str)
    digest = hashlib.sha256(facts_json.encode()).hexdigest()
    everyone = [f"digest/{number}" for number in range(world)]
    missing = partial(_missing, store, everyone)
    if rank == 0:
        store.set("first", digest)
    else:
        _wait(store, ["first"], deadline, lambda: f"rank 0 of {world}")
        if store.get("first").decode() != digest:
            store.set(f"facts/{digest}", facts_json)
    store.set(f"digest/{rank}", digest)
    if rank == 0:
        _wait(store, everyone, deadline, missing)
        digests = [value.decode() for value in store.multi_get(everyone)]
        differing = [value for value in dict.fromkeys(digests) if value != digest]
        facts_of = {digest: dict(facts)} | {value: json.loads(store.get(f"facts/{value}")) for value in differing}
        store.set("verdict", json.dumps(_verdict(digests, facts_of)))
    _wait(store, ["verdict"], deadline, missing, reports=False)  # rank 0 does
    verdict = json.loads(store.get("verdict"))
    if verdict is None:
        return
    store.set(f"heard/{rank}", "")
    if rank == 0:
        with suppress(RuntimeError):  # a rank has ended already
            store.wait([f"heard/{number}" for number in range(world)], _GOODBYE)
    sentence, status = verdict
    raise RunError(sentence) if status == RunError.exit_status else ConfigError(sentence)


def plain(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Flattens a tree of mappings: its values by dotted key."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values |= plain(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return values


def _verdict(digests: list[str], facts_of: Mapping[str, Mapping[str, Any]]) -> tuple[str, int] | None:
    """A sentence and an exit status; None if all ranks agree. `digests` has one entry per rank, in order; `facts_of`
    has the facts of each digest."""
    ranks_of: dict[str, list[int]] = {}
    for rank, digest in enumerate(digests):
        ranks_of.setdefault(digest, []).append(rank)
    failed = next((digest for digest, facts in facts_of.items() if ERROR in facts), None)
    if failed is not None:
        ranks = ranks_of[failed]
        where = "" if len(ranks) == len(digests) else f"{format_ranks(ranks)} of {len(digests)}: "
        return f"{where}{facts_of[failed][ERROR]}", int(facts_of[failed][STATUS])
    if len(facts_of) == 1:
        return None
    differences = []
    for key in dict.fromkeys(key for facts in facts_of.values() for key in facts):
        values: dict[str, list[int]] = {}
        for digest, facts in facts_of.items():
            values.setdefault(str(facts.get(key, "absent"))[:100], []).extend(ranks_of[digest])
        if len(values) > 1:
            ways = (f"{value} on {format_ranks(sorted(ranks))}" for value, ranks in values.items())
            differences.append(f"{key} is {' and '.join(ways)}")
    more = len(differences) - _MOST_KEYS
    listed = "; ".join(differences[:_MOST_KEYS]) + (f"; and {more} more differ" if more > 0 else "")
    return f"ranks disagree: {listed}. Start all with the same command, code and data", ConfigError.exit_status


def _missing(store: Store, keys: list[str]) -> str:
    """The ranks that have not left a digest; rank 0, which is to compare them, if all have."""
    missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
    return f"{format_ranks(missing or [0])} of {len(keys)}"


def _wait(store: Store, keys: list[str], deadline: Deadline, missing: Callable[[], str], reports: bool = True) -> None:
    """Waits until the `missing` ranks have set `keys`. With `reports`, prints from time to time which they are."""
    while True:
        try:
            store.wait(keys, timedelta(seconds=deadline.next_wait_s))
            return
        except RuntimeError as error:
            # torch's error of a timeout; any other means that the store is gone.
            if type(error).__name__ != "DistStoreError":
                raise RendezvousError(f"{_GONE}: look for what it printed, and start all ranks again") from None
        if deadline.expired:
            raise RendezvousError(
                f"not all ranks have come: {missing()} said nothing within {deadline.limit_s:g} s "
                "(health.rendezvous_timeout_s): look for what they printed, and start all ranks again"
            )
        if reports:
            deadline.report(lambda: f"waiting to meet {missing()}")
