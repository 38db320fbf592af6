"""Compares the exchanges of ranks that must meet: what would hang, or mix up tensors, on a cluster."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from pretrain.rehearse.exchange import Exchange, RankGroup

Log = Mapping[str, Sequence[Exchange]]
"""exchanges of a rank in order, by the part of the run: the build, and each step"""
_Found = Iterator[tuple[str, str]]
"""names of groups, each with a sentence"""


@dataclass(frozen=True, kw_only=True)
class ExchangeAgreement:
    """What was compared, and sentences that say where ranks disagree. Later parts of the run are not compared then."""

    groups: int
    """groups of which at least two ranks were rehearsed"""
    collectives: int
    """collectives of these groups"""
    neighbours: int
    """pairs of ranks that send and receive messages"""
    messages: int
    disagreements: tuple[str, ...]


def compare(logs: Mapping[int, Log]) -> ExchangeAgreement:
    """Compares the logs of ranks, by number."""
    collectives: dict[tuple[str, RankGroup], dict[int, list[Exchange]]] = {}
    messages: dict[tuple[str, int, int], dict[int, list[Exchange]]] = {}
    parts = list(dict.fromkeys(part for log in logs.values() for part in log))
    disagreements: list[str] = []
    for part in parts:
        of_part = {rank: log.get(part, ()) for rank, log in logs.items()}
        met, sent = _by_group(of_part), _by_pair(of_part)
        collectives |= {(part, group): members for group, members in met.items()}
        messages |= {(part, *pair): sides for pair, sides in sent.items()}
        if not disagreements:
            differing = [*_differing(met, part), *_mismatched(sent, part)]
            disagreements = _first_of_each(differing) or _hang(of_part, part)
    return ExchangeAgreement(
        groups=len({group for _, group in collectives}),
        collectives=sum(len(next(iter(members.values()))) for members in collectives.values()),
        neighbours=len({frozenset(pair) for _, *pair in messages}),
        messages=sum(len(next(iter(sides.values()))) for sides in messages.values()),
        disagreements=tuple(disagreements),
    )


def _by_group(logs: Mapping[int, Sequence[Exchange]]) -> dict[RankGroup, dict[int, list[Exchange]]]:
    """Collectives of each rank by group, if at least two of its ranks were rehearsed."""
    groups: dict[RankGroup, dict[int, list[Exchange]]] = defaultdict(dict)
    for rank, log in logs.items():
        for exchange in log:
            if not exchange.is_message:
                groups[exchange.group].setdefault(rank, []).append(exchange)
    complete = {
        group: {rank: logs_.get(rank, []) for rank in group.ranks if rank in logs} for group, logs_ in groups.items()
    }
    return {group: members for group, members in complete.items() if len(members) > 1}


def _by_pair(logs: Mapping[int, Sequence[Exchange]]) -> dict[tuple[int, int], dict[int, list[Exchange]]]:
    """Messages from one rank to another, as both see them."""
    pairs: dict[tuple[int, int], dict[int, list[Exchange]]] = {}
    for rank, log in logs.items():
        for exchange in log:
            if exchange.peer is not None and exchange.peer in logs:
                pair = (rank, exchange.peer) if exchange.kind == "send" else (exchange.peer, rank)
                pairs.setdefault(pair, {pair[0]: [], pair[1]: []})[rank].append(exchange)
    return pairs


def _differing(groups: Mapping[RankGroup, Mapping[int, Sequence[Exchange]]], part: str) -> _Found:
    """Collectives of neighbouring members of each group."""
    for group, members in groups.items():
        for (rank, log), (next_rank, next_log) in pairwise(members.items()):
            difference = _first_difference({rank: log, next_rank: next_log}, f"of the {group} in the {part}")
            if difference:
                yield group.name, f"ranks {rank} and {next_rank} disagree on exchange {difference}"


def _mismatched(pairs: Mapping[tuple[int, int], Mapping[int, Sequence[Exchange]]], part: str) -> _Found:
    """Messages from one rank to another."""
    for (source, target), sides in pairs.items():
        difference = _first_difference(sides, f"from rank {source} to rank {target} in the {part}")
        if difference:
            yield "messages", f"ranks {source} and {target} disagree on message {difference}"


def _first_difference(logs: Mapping[int, Sequence[Exchange]], where: str) -> str:
    """Position, from 1, and sides of the first exchange that two ranks disagree on. They may agree from other lines;
    but if they come to the same lines in another order, they mix up what they exchange, also if it is of one shape."""
    (rank, log), (next_rank, next_log) = logs.items()
    pairs = list(zip_longest(log, next_log))
    reordered = Counter(one.line for one in log) == Counter(one.line for one in next_log)
    if not reordered and all(own and other and own.agrees(other) for own, other in pairs):
        return ""
    for index, (own, other) in enumerate(pairs, 1):
        if own is None or other is None or not own.agrees(other) or own.line != other.line:
            would = [f"rank {n} would {one or 'exchange nothing more'}" for n, one in ((rank, own), (next_rank, other))]
            return f"{index} {where}: {', '.join(would)}"
    return ""


def _hang(logs: Mapping[int, Sequence[Exchange]], part: str) -> list[str]:
    """Groups agree, each for itself: makes the collectives of all ranks in order, until none can be made as members of
    its group are in another one. What is asynchronous counts as if ranks waited for it: communicators that are used in
    another order on some ranks may hang all the same."""
    left = {rank: [one for one in log if not one.is_message] for rank, log in logs.items()}
    at = dict.fromkeys(left, 0)

    def group_of(rank: int) -> RankGroup | None:
        return left[rank][at[rank]].group if at[rank] < len(left[rank]) else None

    ready = list(left)
    while ready:
        group = group_of(ready.pop())
        members = [rank for rank in group.ranks if rank in left] if group is not None else []
        if members and all(group_of(rank) == group for rank in members):
            for rank in members:
                at[rank] += 1
            ready += members
    waits_for = {
        rank: next(one for one in group.ranks if one in left and group_of(one) != group)
        for rank in left
        if (group := group_of(rank)) is not None
    }
    if not waits_for:
        return []
    chain = [next(iter(waits_for))]
    while (following := waits_for[chain[-1]]) not in chain:
        chain.append(following)
    turns = [f"rank {n} would first {left[n][at[n]]} in the {group_of(n)}" for n in chain[chain.index(following) :]]
    return [f"ranks would wait for each other in the {part}: {', '.join(turns)}"]


def _first_of_each(found: Sequence[tuple[str, str]]) -> list[str]:
    """The first sentence about groups of each name, and the number of others."""
    first: dict[str, list[str]] = defaultdict(list)
    for name, sentence in found:
        first[name].append(sentence)
    return [
        sentences[0] + (f"; and {len(sentences) - 1} more of {name}" if len(sentences) > 1 else "")
        for name, sentences in first.items()
    ]
