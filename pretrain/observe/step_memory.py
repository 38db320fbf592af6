"""Memory at the peak of a step by what holds it, read from a trace of torch's profiler with `profile.memory`. Without
torch.

    peak = peak_of(load_trace(Path("runs/book/profile/step-00000020-rank-00000.json.gz")))
    peak.by_place      # {"decoder.layers.*.mlp.linear_fc1": 40_000_000, "step/backward": 9_000_000, ...} bytes

A block belongs to the innermost module whose forward pass allocated it, and outside all of them to the phase of the
step. Layers of a stack are one row.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MODULE_RANGE = "module/"
_LAYER, _WRAPPERS = re.compile(r"\blayers\.\d+"), re.compile(r"^(module\.)+")
_CPU = 0
"""torch's number of this type of device"""
_ELSEWHERE = "elsewhere"
_Span = tuple[float, float, str]
"""(begin, end, name)"""


@dataclass(frozen=True)
class MemoryPeak:
    """The moment of a step at which most bytes of one rank's device were allocated."""

    rank: int
    on_gpu: bool
    phase: str
    """the step's phase at that moment"""
    before: int | None
    """bytes that were there when the step began and are still, less those since freed; None on a CPU, where torch does
    not count what was allocated before the profiled step"""
    by_place: Mapping[str, int]
    """bytes of blocks that the step allocated, the largest first"""


def peak_of(trace: Mapping[str, Any]) -> MemoryPeak | None:
    """None for a trace without allocations."""
    events = trace["traceEvents"]
    blocks = [event for event in events if event.get("name") == "[memory]"]
    on_gpu = any(block["args"]["Device Type"] != _CPU for block in blocks)
    blocks = [block for block in blocks if (block["args"]["Device Type"] != _CPU) == on_gpu]
    if not blocks:
        return None
    blocks.sort(key=lambda block: block["ts"])
    changes = [int(block["args"]["Bytes"]) for block in blocks]
    total, most, last = 0, -1, 0
    for number, change in enumerate(changes):
        total += change
        if total > most:
            most, last = total, number
    ranges = _Ranges(events)
    alive: dict[int, tuple[int, str]] = {}
    for block, change in zip(blocks[: last + 1], changes, strict=False):
        address = block["args"]["Addr"]
        if change > 0:
            alive[address] = change, ranges.place(block["tid"], block["ts"])
        else:
            alive.pop(address, None)
    by_place: dict[str, int] = defaultdict(int)
    for size, place in alive.values():
        by_place[place] += size
    new = sum(by_place.values())
    return MemoryPeak(
        rank=trace.get("distributedInfo", {}).get("rank", 0),
        on_gpu=on_gpu,
        phase=ranges.phase(blocks[last]["ts"]),
        before=int(blocks[last]["args"]["Total Allocated"]) - new if on_gpu else None,
        by_place=dict(sorted(by_place.items(), key=lambda item: -item[1])),
    )


class _Ranges:
    """Ranges of modules and phases. Times that are asked for never decrease."""

    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        spans: dict[int | None, list[_Span]] = defaultdict(list)
        for event in events:
            if event.get("ph") == "X" and event.get("cat") == "user_annotation":
                name: str = event["name"]
                thread = event["tid"] if name.startswith(MODULE_RANGE) else None
                if thread is not None or name.startswith("step/"):
                    spans[thread].append((event["ts"], event["ts"] + event["dur"], name))
        self._nested = {thread: _Nested(of_thread) for thread, of_thread in spans.items()}

    def place(self, thread: int, time: float) -> str:
        """The module whose forward pass runs on the thread, otherwise the phase."""
        module = self._nested[thread].innermost(time) if thread in self._nested else None
        if module is None:
            return self.phase(time)
        return _LAYER.sub("layers.*", _WRAPPERS.sub("", module.removeprefix(MODULE_RANGE)))

    def phase(self, time: float) -> str:
        """The phase of the step, of whichever thread."""
        phase = self._nested[None].innermost(time) if None in self._nested else None
        return phase or _ELSEWHERE


class _Nested:
    """Spans of which each two are apart, or one within the other."""

    def __init__(self, spans: list[_Span]) -> None:
        self._coming = sorted(spans, key=lambda span: (-span[0], span[1]))  # the next one is the last
        self._open: list[_Span] = []

    def innermost(self, time: float) -> str | None:
        """The name of the innermost span around `time`."""
        while self._coming and self._coming[-1][0] <= time:
            self._open.append(self._coming.pop())
        self._open = [span for span in self._open if span[1] > time]
        return self._open[-1][2] if self._open else None
