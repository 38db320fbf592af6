"""Makes the exchanges of all rehearsed ranks, until these are done or wait for each other.

A host launches exchanges on its device and runs ahead of it until it reads a value. A device has one stream, which
computes in order, and communicators beside it, as NCCL does: one for each group, and one for each pair of ranks of a
group whose messages are not in a batch. An exchange starts once the stream has come to its launch and the exchanges
before it on its communicator are done. It is done once all its rehearsed ranks have started it. This holds for a send,
too: NCCL may buffer a short one, but the same code hangs with longer ones. Ranks that were not rehearsed are ready.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from pretrain.rehearse.exchange import Exchange, Log, RankGroup

_Meeting = tuple[int, int, int, int]
"""communicator, its sender and receiver (-1 for a collective), and number of the exchange among such"""
_Side = tuple[int, _Meeting]
"""rank that has to come, and where to"""


@dataclass(kw_only=True, eq=False)
class _Operation:
    """Operation that a rank launches on a communicator at once: a collective, a message, or a batch of messages."""

    rank: int
    communicator: int
    step: int
    """index of the step that launches it"""
    on_host: bool
    sides: list[_Side] = field(default_factory=list)
    """what other ranks wait for"""
    needs: dict[_Side, Exchange] = field(default_factory=dict)
    """what other ranks have to start, each with this rank's exchange"""


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A launch, or a wait for an operation or (without one) of the host for its device."""

    part: str
    line: str
    is_launch: bool
    operation: _Operation | None

    @property
    def on_host(self) -> bool:
        return self.operation is None or self.operation.on_host


class _Rank:
    def __init__(self, steps: list[_Step]) -> None:
        self.steps = steps
        self.host = self.device = 0
        """index of the next step of each; the device's is at most the host's"""
        self.queues: dict[int, deque[_Operation]] = defaultdict(deque)
        """operations of each communicator that are not done; the first one is started"""

    @property
    def is_done(self) -> bool:
        return self.device == len(self.steps)

    def hindrance(self, step: int) -> _Operation:
        """The operation for which this rank waits before it comes to a step."""
        waits = self.steps[self.host] if self.host <= step and self.host < len(self.steps) else None
        operation = (waits and waits.operation) or self.steps[self.device].operation
        assert operation is not None, "a device waits for operations only"
        return operation


def find_deadlock(logs: Mapping[int, Log]) -> str | None:
    """A sentence that says which ranks would wait for each other, or may: NCCL asks for one order of communicators on
    all ranks, also if nobody waits where collectives are launched. The logs of ranks that meet agree."""
    for launches_wait, verb in ((False, "would"), (True, "may")):
        cycle = _Simulation(logs, launches_wait).run()
        if cycle is not None:
            return f"ranks {verb} wait for each other {cycle}"
    return None


class _Simulation:
    """`launches_wait`: a device waits for each collective where it is launched, not where its result is used."""

    def __init__(self, logs: Mapping[int, Log], launches_wait: bool) -> None:
        self._numbers = set(logs)
        self._launches_wait = launches_wait
        self._communicators: dict[tuple[RankGroup, frozenset[int | None]], int] = {}
        self._operations: dict[_Side, _Operation] = {}
        self._started: set[_Side] = set()
        self._ranks = {number: _Rank(self._steps(number, log)) for number, log in logs.items()}

    def run(self) -> str | None:
        """Makes as many steps as possible. Returns the part of the run in which ranks wait for each other, and how."""
        ready = list(self._ranks)
        while ready:
            ready += self._advance(ready.pop())
        stuck = next((number for number, rank in self._ranks.items() if not rank.is_done), None)
        return None if stuck is None else self._cycle(stuck)

    def _steps(self, number: int, log: Log) -> list[_Step]:
        """The steps of a rank. The k-th collective of a group meets the k-th ones of its other ranks, and the k-th
        message to a rank the k-th one that it receives from this one."""
        steps: list[_Step] = []
        operations: list[_Operation] = []
        counts: Counter[tuple[int, int, int]] = Counter()
        communicators: dict[int, tuple[int, list[int]]] = {}
        for part, entry in ((part, entry) for part, entries in log.items() for entry in entries):
            if not isinstance(entry, Exchange):
                awaited = None if entry.exchange is None else operations[entry.exchange]
                steps.append(_Step(part=part, line=entry.line, is_launch=False, operation=awaited))
                continue
            if id(entry) not in communicators:  # hashes of large groups take long
                communicators[id(entry)] = self._meets(number, entry)
            communicator, partners = communicators[id(entry)]
            if entry.batch_position > 1:
                operation = operations[-1]
            else:
                operation = _Operation(rank=number, communicator=communicator, step=len(steps), on_host=entry.on_host)
                steps.append(_Step(part=part, line=entry.line, is_launch=True, operation=operation))
                if self._launches_wait and not entry.is_message:
                    steps.append(_Step(part=part, line=entry.line, is_launch=False, operation=operation))
            operations.append(operation)
            ends = (-1, -1)
            if entry.peer is not None:
                ends = (number, entry.peer) if entry.kind == "send" else (entry.peer, number)
            meeting = (communicator, *ends, counts[communicator, *ends])
            counts[communicator, *ends] += 1
            operation.sides.append((number, meeting))
            operation.needs |= {(partner, meeting): entry for partner in partners}
            self._operations[number, meeting] = operation
        return steps

    def _meets(self, number: int, exchange: Exchange) -> tuple[int, list[int]]:
        """The communicator of an exchange, and the other rehearsed ranks that it needs."""
        if exchange.peer is None:
            pair, others = frozenset[int | None](), self._numbers.intersection(exchange.group.ranks) - {number}
        else:
            pair = frozenset() if exchange.batch_position else frozenset((number, exchange.peer))
            others = self._numbers & {exchange.peer}
        communicator = self._communicators.setdefault((exchange.group, pair), len(self._communicators))
        return communicator, sorted(others)

    def _advance(self, number: int) -> set[int]:
        """Moves a rank's host and device as far as possible. Returns the ranks that may move now."""
        rank = self._ranks[number]
        woken: set[int] = set()
        for queue in rank.queues.values():
            woken |= self._settle(queue)
        moved = True
        while moved:
            moved = False
            while rank.host < len(rank.steps) and self._passes(rank, rank.host, on_host=True, woken=woken):
                rank.host += 1
                moved = True
            while rank.device < rank.host and self._passes(rank, rank.device, on_host=False, woken=woken):
                rank.device += 1
                moved = True
        return woken

    def _passes(self, rank: _Rank, index: int, *, on_host: bool, woken: set[int]) -> bool:
        """Makes a step of a host or of a device. Returns whether it is done."""
        step = rank.steps[index]
        operation = step.operation
        if step.on_host != on_host:
            return True
        if operation is None:
            return rank.device == index
        queue = rank.queues[operation.communicator]
        if not step.is_launch:
            return operation not in queue
        queue.append(operation)
        if len(queue) == 1:
            woken |= self._start(operation) | self._settle(queue)
        return True

    def _settle(self, queue: deque[_Operation]) -> set[int]:
        """Removes what is done from a communicator's queue, and starts what follows. Returns ranks that wait for it."""
        woken: set[int] = set()
        while queue and queue[0].needs.keys() <= self._started:
            queue.popleft()
            if queue:
                woken |= self._start(queue[0])
        return woken

    def _start(self, operation: _Operation) -> set[int]:
        self._started.update(operation.sides)
        return {rank for rank, _ in operation.needs}

    def _cycle(self, stuck: int) -> str:
        """Follows ranks from one that waits to the one that it waits for, until one comes again."""
        chain: list[_Operation] = []
        words: list[str] = []
        rank = self._ranks[stuck]
        operation: _Operation | None = rank.hindrance(len(rank.steps))
        while operation is not None:
            operation = self._ranks[operation.rank].queues[operation.communicator][0]
            if operation in chain:
                begin = chain.index(operation)
                return f"in the {self._part(operation)}: {', '.join(words[begin:])}"
            side, exchange = next(item for item in operation.needs.items() if item[0] not in self._started)
            chain.append(operation)
            words.append(self._described(operation, exchange))
            operation = self._hindrance(side)
        return f"in the {self._part(chain[-1])}: {words[-1]}, which rank {side[0]} never joins on this communicator"

    def _described(self, operation: _Operation, exchange: Exchange) -> str:
        where = f"in the {exchange.group}"
        if exchange.is_message:
            where = f"{'to' if exchange.kind == 'send' else 'from'} rank {exchange.peer}"
        waits = (
            step.line
            for step in self._ranks[operation.rank].steps[operation.step + 1 :]
            if step.operation is operation and not step.is_launch
        )
        line = next(waits, exchange.line)
        awaited = f" (awaited at {line})" if line != exchange.line else ""
        return f"rank {operation.rank} would first {exchange} {where}{awaited}"

    def _part(self, operation: _Operation) -> str:
        return self._ranks[operation.rank].steps[operation.step].part

    def _hindrance(self, side: _Side) -> _Operation | None:
        """The operation for which a rank waits before it comes to a side of an exchange. None: it never does."""
        wanted = self._operations.get(side)
        if wanted is None:
            return None
        rank = self._ranks[wanted.rank]
        return wanted if wanted in rank.queues[wanted.communicator] else rank.hindrance(wanted.step)
