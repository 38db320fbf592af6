"""Contestants that take turns, and the table of what they did."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence


def take_turns(
    contestants: Mapping[str, Callable[[], float]], rounds: int, warm_up: bool = True
) -> dict[str, list[float]]:
    """What each gave in each round, after one that does not count (`warm_up`)."""
    results: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(not warm_up, rounds + 1):
        for name, contestant in contestants.items():
            value = contestant()
            if number:
                results[name].append(value)
    return results


def show(results: Mapping[str, Sequence[float]], unit: str, ours: Sequence[str]) -> None:
    """Medians, spread, and how often as fast each of `ours` is as the other."""
    width = max(map(len, results))
    rounds = len(next(iter(results.values())))
    print(f"{'':{width}}  {unit}, median of {rounds} rounds (least-greatest)" + "".join(f"  {n} / it" for n in ours))
    for name, values in results.items():
        ratios = "".join(f"{_ratio(results[mine], values):{len(mine) + 7}.2f}" for mine in ours if mine in results)
        shown = f"{statistics.median(values):9.1f} ({min(values):.1f}-{max(values):.1f})"
        print(f"{name:{width}}  {shown:{len(unit) + 40}}{ratios}", flush=True)


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
