"""Compares the exchanges of ranks that must meet: what would hang, or mix up tensors, on a cluster."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest

from pretrain.rehearse.deadlock import find_deadlock
from pretrain.rehearse.exchange import Exchange, Log, RankGroup

_Found = Iterator[tuple[str, str]]
"""names of groups, each with a sentence"""


@dataclass(frozen=True, kw_only=True)
class ExchangeAgreement:
    """Numbers of what was compared, and sentences that say where ranks disagree. Later parts of the run are not
    compared then."""

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
        of_part = {rank: [one for one in log.get(part, ()) if isinstance(one, Exchange)] for rank, log in logs.items()}
        met, sent = _by_group(of_part), _by_pair(of_part)
        collectives |= {(part, group): members for group, members in met.items()}
        messages |= {(part, *pair): sides for pair, sides in sent.items()}
        if not disagreements:
            disagreements = _first_of_each([*_differing(met, part), *_mismatched(sent, part)])
    deadlock = None if disagreements else find_deadlock(logs)
    return ExchangeAgreement(
        groups=len({group for _, group in collectives}),
        collectives=sum(len(next(iter(members.values()))) for members in collectives.values()),
        neighbours=len({frozenset(pair) for _, *pair in messages}),
        messages=sum(len(next(iter(sides.values()))) for sides in messages.values()),
        disagreements=tuple(disagreements) if deadlock is None else (deadlock,),
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
    but if they come to the same lines in another order, they mix up what they exchange, also if it is of one shape.
    The same holds for parameters that they exchange: ranks may hold others, but not the same ones in another order.
    (The two sides of messages always come from lines of their own.)"""
    (rank, log), (next_rank, next_log) = logs.items()
    agree = len(log) == len(next_log) and all(own.agrees(other) for own, other in zip(log, next_log, strict=True))
    same_lines = Counter(one.line for one in log) == Counter(one.line for one in next_log)
    by_line = (same_lines or not agree) and not any(one.is_message for one in log)
    by_name = Counter(chain(*(one.names for one in log))) == Counter(chain(*(one.names for one in next_log)))
    for index, (own, other) in enumerate(zip_longest(log, next_log), 1):
        unlike = own is None or other is None or not own.agrees(other) or (by_line and own.line != other.line)
        swapped = _swapped(own, other) if own and other and by_name else ""
        if unlike or swapped:
            would = [f"rank {n} would {one or 'exchange nothing more'}" for n, one in ((rank, own), (next_rank, other))]
            return f"{index} {where}: {', '.join(would)}{swapped}"
    return ""


def _swapped(own: Exchange, other: Exchange) -> str:
    """The first parameters that two ranks mix up."""
    differing = (names for names in zip_longest(own.names, other.names, fillvalue="nothing") if names[0] != names[1])
    return next((f", and {name} would meet {met}" for name, met in differing), "")


def _first_of_each(found: Sequence[tuple[str, str]]) -> list[str]:
    """The first sentence about groups of each name, and the number of others."""
    first: dict[str, list[str]] = defaultdict(list)
    for name, sentence in found:
        first[name].append(sentence)
    return [
        sentences[0] + (f"; and {len(sentences) - 1} more of {name}" if len(sentences) > 1 else "")
        for name, sentences in first.items()
    ]
