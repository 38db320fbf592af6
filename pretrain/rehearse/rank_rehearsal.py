"""Counts of what a rehearsed rank does and holds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pretrain.rehearse.exchange import Log
from pretrain.rehearse.loading import LoadCounts

STATE = ("weights", "gradients", "optimizer")
CACHE = "cache"
"""category of the keys and values that generation reads again"""
_MOST_CAUSES = 3
"""most causes that are named in one line"""


@dataclass(frozen=True, kw_only=True)
class EqualTensors:
    """Equal tensors that live at the peak."""

    count: int
    total_bytes: int
    category: str
    operator: str
    """torch's operator that made them"""
    module: str
    """module whose forward or backward pass made them, with * for the numbers of layers"""
    line: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Exchanges:
    """Exchanges of one kind in one group of ranks, in one part of the work."""

    group: str
    kind: str
    ranks: int
    device: str
    count: int
    total_bytes: int
    sent_bytes: float
    """bytes that this rank sends if the group is a ring"""

    @property
    def is_sent(self) -> bool:
        """Whether the rank's device sends something."""
        return self.device == "cuda" and self.kind not in ("recv", "broadcast")


@dataclass(frozen=True, kw_only=True)
class PartCounts:
    """Counts of what one rank does in one part of its work, such as a step."""

    name: str
    repeats: bool
    """whether an equal part ran before, so that this one does what every later one will"""
    peak_bytes: int
    flops: Mapping[str, int]
    moved_bytes: Mapping[str, int]
    """bytes of device memory read and written, by operator"""
    exchanges: tuple[Exchanges, ...]
    operators: int
    waits: Mapping[str, int]
    """causes of waits of the host, with the line and how often"""

    @property
    def sent_bytes(self) -> dict[str, float]:
        """Bytes that the rank's device sends, by group of ranks."""
        return _sent_bytes(self.exchanges)


@dataclass(frozen=True, kw_only=True)
class RankRehearsal:
    """Counts of what one rank does and holds: in the first part of its work (when training, a step), where a field does
    not say otherwise."""

    rank: int
    coordinates: tuple[int, int, int, int]
    """tensor, context, data and pipeline rank"""
    problem: str | None = None
    """why the rank could not be built, or do its work"""
    parameters: int = 0
    build_peak_bytes: int = 0
    build_reserved_bytes: int = 0
    """most memory that torch's caching allocator reserves while the engine is built"""
    state_bytes: Mapping[str, int] = field(default_factory=dict)
    """weights, gradients, optimizer, and other memory that lives once the engine is built"""
    peak_bytes: int = 0
    """peak of all parts"""
    peak_phase: str = ""
    reserved_bytes: int = 0
    """most memory that torch's caching allocator reserves after the build, in all parts and to load a checkpoint"""
    allocator_retries: int = 0
    """number of times that it had to return memory to the driver first, as the device was full"""
    unmeasured_bytes: int = 0
    """constant for what no rehearsal sees: libraries' workspaces, NCCL's buffers, the CUDA context"""
    at_peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """bytes at the peak: weights, gradients, optimizer, cache, and other memory by the phase that allocated it"""
    phase_peak_bytes: Mapping[str, int] = field(default_factory=dict)
    largest: tuple[EqualTensors, ...] = ()
    """largest tensors at the peak, without the training state"""
    flops: Mapping[str, int] = field(default_factory=dict)
    moved_bytes: Mapping[str, int] = field(default_factory=dict)
    exchanges: tuple[Exchanges, ...] = ()
    exchange_log: Log = field(default_factory=dict)
    """exchanges and waits for them in order, of the build and of each part"""
    operators: int = 0
    first_waits: Mapping[str, int] = field(default_factory=dict)
    """causes of waits of the host in the first part, with the line and how often"""
    waits: Mapping[str, int] = field(default_factory=dict)
    """causes of waits of the host in the last part: when training, in the second step and so in every later one"""
    without_kernel: Mapping[str, int] = field(default_factory=dict)
    """operators without a CUDA kernel, with the line and how often in a part at most"""
    approximations: tuple[str, ...] = ()
    """what was counted as something else: names of `report.APPROXIMATIONS`"""
    left_bytes: int = 0
    """memory that the last part left behind"""
    load: LoadCounts | None = None
    """counts for loading a checkpoint; None: none was loaded"""
    parts: tuple[PartCounts, ...] = ()
    """each part of the work, in order"""
    build_s: float = 0.0
    step_s: float = 0.0
    cpu_s: float = 0.0
    host_bytes: int = 0

    @property
    def most_reserved_bytes(self) -> int:
        """Most memory that the allocator reserves at any time: this decides whether the rank fits."""
        return max(self.build_reserved_bytes, self.reserved_bytes)

    @property
    def needed_bytes(self) -> int:
        """Memory of a device that the rank needs."""
        return self.most_reserved_bytes + self.unmeasured_bytes

    @property
    def sent_bytes(self) -> dict[str, float]:
        """Bytes that the rank's device sends in the first part, by group of ranks."""
        return _sent_bytes(self.exchanges)


def _sent_bytes(exchanges: Iterable[Exchanges]) -> dict[str, float]:
    sent: dict[str, float] = {}
    for one in exchanges:
        if one.is_sent:
            sent[one.group] = sent.get(one.group, 0.0) + one.sent_bytes
    return sent


def causes(counts: Mapping[str, int]) -> str:
    """The most frequent causes, each with how often if that is more than once."""
    ordered = largest_first(counts)
    shown = [f"{cause}{f' ({n:,} times)' if n > 1 else ''}" for cause, n in ordered[:_MOST_CAUSES]]
    rest = len(ordered) - len(shown)
    return ", ".join(shown) + (f" and {rest} more lines" if rest else "")


def largest_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Items by falling count."""
    return sorted(counts.items(), key=lambda item: -item[1])
