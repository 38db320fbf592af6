"""The ranks' reports of a run that stands still -> who waits for whom, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.process.hang_report import Report
from pretrain.process.place import Place, ranks_in_words

_MOST_STACKS = 3  # shown; the files have all


@dataclass(frozen=True)
class Verdict:
    """What the reports come to."""

    sentence: str
    """one line"""
    text: str
    """the whole message"""
    facts: dict[str, Any]
    """the same, as plain values"""


def judge(reports: Mapping[int, Report], places: Sequence[Place], hang_s: float, folder: str) -> Verdict:
    """`reports` by rank, at least one; `places` of all ranks; `folder` is where the reports lie."""
    groups: dict[tuple[str | None, str], list[int]] = {}
    for rank, report in sorted(reports.items()):
        groups.setdefault((report.waits_in, report.line), []).append(rank)
    missing = [rank for rank in range(len(places)) if rank not in reports]
    waiting = {key: ranks for key, ranks in groups.items() if key[0] is not None}
    elsewhere = {key: ranks for key, ranks in groups.items() if key[0] is None}
    step = max(report.step for report in reports.values())
    found = [
        *(_waits(name, line, ranks) for (name, line), ranks in waiting.items()),
        *(f"{_named(ranks, places)} gave no report: stopped, dead, or cut off" for ranks in _by_host(missing, places)),
        *(f"{_named(ranks, places)} {_verb(ranks, 'is', 'are')} at {line}, {reports[ranks[0]].doing}"
          for (_, line), ranks in elsewhere.items()),
    ]  # fmt: skip
    silent_s = min(report.silent_s for report in reports.values())
    begun = f"the run hangs at step {step:,}: no rank has gone on for {silent_s:.0f} s (health.hang_s={hang_s:g})"
    lines = [begun, *(f"  {one}" for one in found)]
    for (_, line), ranks in sorted(elsewhere.items(), key=lambda item: len(item[1]))[:_MOST_STACKS]:
        lines += [f"  the stack of rank {ranks[0]}, at {line}:", *_indented(reports[ranks[0]].stack)]
    lines.append(
        f"  each rank's stack is in {folder}; the same command goes on from the newest checkpoint, or begins again"
    )
    facts = {
        "step": step,
        "hang_s": hang_s,
        "waiting": [{"collective": name, "line": line, "ranks": ranks} for (name, line), ranks in waiting.items()],
        "elsewhere": [
            {"rank": rank, "host": places[rank].host, "line": line, "doing": reports[rank].doing}
            for (_, line), ranks in elsewhere.items()
            for rank in ranks
        ],
        "missing": [{"rank": rank, "host": places[rank].host} for rank in missing],
        "reports": folder,
    }
    return Verdict("; ".join([begun, *found]), "\n".join(lines), facts)


def _waits(name: str | None, line: str, ranks: Sequence[int]) -> str:
    return f"{ranks_in_words(ranks)} {_verb(ranks, 'waits', 'wait')} in {name}, called from {line}"


def _named(ranks: Sequence[int], places: Sequence[Place]) -> str:
    """With their hosts, and with the process where it is one."""
    hosts = list(dict.fromkeys(places[rank].host for rank in ranks))
    where = f"{_verb(hosts, 'host', 'hosts')} {', '.join(hosts)}"
    return f"{ranks_in_words(ranks)} ({where}{f', pid {places[ranks[0]].pid}' if len(ranks) == 1 else ''})"


def _by_host(ranks: Sequence[int], places: Sequence[Place]) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    for rank in ranks:
        found.setdefault(places[rank].host, []).append(rank)
    return list(found.values())


def _verb(several: Sequence[object], one: str, more: str) -> str:
    return one if len(several) == 1 else more


def _indented(stack: str) -> list[str]:
    return [f"    {line}" for line in stack.rstrip().splitlines()]
