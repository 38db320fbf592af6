"""Figures of a rehearsed rank beside the planner's."""

from collections.abc import Iterator
from dataclasses import dataclass

from pretrain.rehearse.planned import PlannedRank
from pretrain.rehearse.rank_rehearsal import STATE, RankRehearsal

_GIB, _MIB, _TERA = 2**30, 2**20, 1e12


@dataclass(frozen=True, kw_only=True)
class ComparedFigure:
    """A figure, counted and planned."""

    name: str
    unit: str
    counted: float
    planned: float | None
    """None where the planner has no such figure"""

    @property
    def ratio(self) -> float | None:
        """Counted, of what is planned."""
        return self.counted / self.planned if self.planned else None


def compare_with_plan(rank: RankRehearsal, planned: PlannedRank) -> list[ComparedFigure]:
    """Memory by category, operations, and bytes sent by group and kind."""
    return [*_memory(rank, planned), *_work(rank, planned), *_sent(rank, planned)]


def _memory(rank: RankRehearsal, planned: PlannedRank) -> Iterator[ComparedFigure]:
    def memory(name: str, counted: float, expected: float | None) -> ComparedFigure:
        in_plan = None if expected is None else expected / _GIB
        return ComparedFigure(name=name, unit="GiB", counted=counted / _GIB, planned=in_plan)

    for category in STATE:
        yield memory(category, rank.at_peak_bytes.get(category, 0), planned.held[category])
    beside = sum(size for category, size in rank.at_peak_bytes.items() if category not in STATE)
    yield memory("all else at the peak", beside, sum(size for part, size in planned.held.items() if part not in STATE))
    yield memory("peak of a step", rank.peak_bytes, planned.peak_bytes)
    # The planner counts the build only where it holds more than a step.
    building = planned.build_bytes if planned.build_bytes > planned.peak_bytes else None
    yield memory("peak of the build", rank.build_peak_bytes, building)


def _work(rank: RankRehearsal, planned: PlannedRank) -> Iterator[ComparedFigure]:
    counted = sum(rank.flops.values())
    yield ComparedFigure(name="operations", unit="TFLOP", counted=counted / _TERA, planned=planned.flops / _TERA)


def _sent(rank: RankRehearsal, planned: PlannedRank) -> Iterator[ComparedFigure]:
    for group, counted in rank.sent_bytes.items():
        expected = planned.sent_bytes.get(group)
        in_plan = None if expected is None else expected / _MIB
        yield ComparedFigure(name=f"sent, {group}", unit="MiB", counted=counted / _MIB, planned=in_plan)
        for one in rank.exchanges:
            if one.group == group and one.is_sent:
                name = f"  {one.count} x {one.kind}"
                yield ComparedFigure(name=name, unit="MiB", counted=one.sent_bytes / _MIB, planned=None)
