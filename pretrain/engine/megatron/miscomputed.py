"""Conclusion from all replays of a step (`replay.py`): which rank computes wrong. Arithmetic on what all ranks found.

A rank that computes wrong hands its result on: ranks that share activations with it differ, too. In the forward pass
those behind it in the model do, in the backward pass those before it. So of the stages of a pipeline the first is named
whose outputs differ, or if none do, the last whose gradients differ. Within a stage all ranks are named that differ.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm

from pretrain.errors import MiscomputedError
from pretrain.layout.layout import Layout
from pretrain.process.rank_location import RankLocation, format_ranks

_NUM_NAMED = 3
"""parameters, and hosts, in a sentence"""
_TIMES = ("first", "second", "third")


@dataclass(frozen=True, kw_only=True)
class RankFinding:
    """Differences on one rank between two computations of a step."""

    rank: int
    location: RankLocation
    coordinates: tuple[int, int, int, int]
    """tensor, context, data and pipeline rank"""
    weights: tuple[str, ...]
    """weights in use that are not what they were before the step"""
    output: int | None
    """first chunk of this rank, in the order of the model, whose output differs"""
    own: tuple[str, ...]
    """gradients, and other results, that differ before ranks exchange them"""
    chunk: int
    """last chunk of this rank that has one of these; -1: none has"""
    exchanged: tuple[str, ...]
    """gradients, and other results, that differ after the exchange"""
    wholes: tuple[int, int, int]
    """a number for all that this rank computed itself, each of three times"""
    of_next: int | None
    """the same for the rows of the next data rank; None: they were not computed"""


def explain(step: int, findings: Sequence[RankFinding], layout: Layout) -> MiscomputedError:
    """The error of a step that was computed twice with different results; `findings` are in the order of ranks."""
    locations = [one.location for one in findings]
    changed = [one for one in findings if one.weights]
    if changed:
        names = _joined(name for one in changed for name in one.weights)
        what = f"changed weights in memory while the step was computed ({names})"
        return _error(step, locations, [one.rank for one in changed], kind="weights", what=what, names=names)
    suspects = [one for group in _computing_together(findings, layout) for one in _first_of(group)]
    if not suspects:
        received = [one for one in findings if one.exchanged]
        names = _joined(name for one in received for name in one.exchanged)
        what = f"received two different sums of the same gradients ({names}): an exchange, or memory, is at fault"
        return _error(step, locations, [one.rank for one in received], kind="exchange", what=what, names=names)
    names = _joined(name for one in suspects for name in one.own) or "its output"
    said = [_third_time(suspects[0]), *_peer_says(suspects[0], findings, layout)]
    what = f"computed two results from the same rows and weights ({names}). {', and '.join(said)}"
    return _error(step, locations, [one.rank for one in suspects], kind="computation", what=what, names=names)


def explain_replicas(
    step: int, locations: Sequence[RankLocation], differing: Sequence[tuple[str, Sequence[int]]]
) -> MiscomputedError:
    """The error of ranks that should hold the same weights, before a step. `differing`: names of weights, and the ranks
    that most others do not agree with."""
    ranks, names = sorted({rank for _, some in differing for rank in some}), _joined(name for name, _ in differing)
    what = f"held other weights than ranks that hold the same part of the model ({names})"
    return _error(step, locations, ranks, kind="replicas", what=what, names=names)


def _error(
    step: int, locations: Sequence[RankLocation], ranks: Sequence[int], *, kind: str, what: str, names: str
) -> MiscomputedError:
    hosts = list(dict.fromkeys(locations[rank].host for rank in ranks))
    more = f" and {len(hosts) - _NUM_NAMED} more" if len(hosts) > _NUM_NAMED else ""
    alone = len({location.host for location in locations}) == 1
    without = f" without {hosts[0]}" if len(hosts) == 1 and not alone else ""
    return MiscomputedError(
        f"step {step}: {format_ranks(ranks)} ({', '.join(hosts[:_NUM_NAMED])}{more}) {what}. No update was made: a "
        f"machine is wrong, not the data; run the same command again{without}",
        {"step": step, "kind": kind, "ranks": list(ranks), "hosts": hosts, "what": names},
    )


def _computing_together(findings: Sequence[RankFinding], layout: Layout) -> list[list[RankFinding]]:
    """The ranks that share activations, group by group: those of one data rank, or of those that share experts."""
    size = lcm(layout.tensor * layout.context, layout.expert_tensor * layout.expert)
    groups: dict[int, list[RankFinding]] = {}
    for one in findings:
        tensor, context, data, _ = one.coordinates
        groups.setdefault(layout.rank(tensor, context, data, 0) // size, []).append(one)
    return list(groups.values())


def _first_of(group: Sequence[RankFinding]) -> list[RankFinding]:
    """The ranks of a group at the place of the model where its results first differ."""
    forward = [((one.output, one.coordinates[3]), one) for one in group if one.output is not None]
    if forward:
        first = min(place for place, _ in forward)
        return [one for place, one in forward if place == first]
    backward = [((one.chunk, one.coordinates[3]), one) for one in group if one.own]
    last = max((place for place, _ in backward), default=None)
    return [one for place, one in backward if place == last]


def _third_time(suspect: RankFinding) -> str:
    first, second, third = suspect.wholes
    which = "a third result" if third not in (first, second) else f"the {'first' if third == first else 'second'} again"
    return f"The third time it computed {which}"


def _peer_says(suspect: RankFinding, findings: Sequence[RankFinding], layout: Layout) -> list[str]:
    tensor, context, data, pipeline = suspect.coordinates
    peer = findings[layout.rank(tensor, context, (data - 1) % layout.data, pipeline)]
    if peer.of_next is None:
        return []
    agreed = [time for time, whole in zip(_TIMES, suspect.wholes, strict=True) if whole == peer.of_next]
    result = f"the {agreed[0]}" if agreed else "yet another result"
    return [f"{format_ranks([peer.rank])} ({peer.location.host}) computed {result} from these rows"]


def _joined(names: Iterable[str]) -> str:
    every = sorted(set(names))
    more = f" and {len(every) - _NUM_NAMED} more" if len(every) > _NUM_NAMED else ""
    return ", ".join(every[:_NUM_NAMED]) + more
