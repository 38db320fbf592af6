"""Reports of the ranks of a hung run -> a verdict: which ranks wait for which."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.process.hang_report import Report
from pretrain.process.rank_location import RankLocation, format_ranks

_MOST_STACKS = 3  # shown; the files have all


@dataclass(frozen=True)
class HangVerdict:
    """The conclusion from all reports."""

    sentence: str
    """one line"""
    text: str
    """the message, with stacks"""
    facts: dict[str, Any]
    """the content as plain values, for events.jsonl"""


def judge(reports: Mapping[int, Report], locations: Sequence[RankLocation], hang_s: float, folder: str) -> HangVerdict:
    """Judges at least one report, by rank. `locations` of all ranks; `folder` holds the reports."""
    groups: dict[tuple[str | None, str], list[int]] = {}
    for rank, report in sorted(reports.items()):
        groups.setdefault((report.waits_in, report.line), []).append(rank)
    missing = [rank for rank in range(len(locations)) if rank not in reports]
    waiting = {key: ranks for key, ranks in groups.items() if key[0] is not None}
    elsewhere = {key: ranks for key, ranks in groups.items() if key[0] is None}
    step = max(report.step for report in reports.values())
    sentences = [
        *(_waits(name, line, ranks) for (name, line), ranks in waiting.items()),
        *(
            f"{_ranks_and_hosts(ranks, locations)} gave no report: stopped, dead, or cut off"
            for ranks in _by_host(missing, locations)
        ),
        *(
            f"{_ranks_and_hosts(ranks, locations)} {_verb(ranks, 'is', 'are')} at {line}, {reports[ranks[0]].activity}"
            for (_, line), ranks in elsewhere.items()
        ),
    ]
    silent_s = min(report.silent_s for report in reports.values())
    begun = f"the run hangs at step {step:,}: no rank has made progress for {silent_s:.0f} s (health.hang_s={hang_s:g})"
    lines = [begun, *(f"  {sentence}" for sentence in sentences)]
    for (_, line), ranks in sorted(elsewhere.items(), key=lambda item: len(item[1]))[:_MOST_STACKS]:
        lines += [f"  the stack of rank {ranks[0]}, at {line}:", *_indented(reports[ranks[0]].stack)]
    lines.append(f"  each rank's stack is in {folder}; run the same command again to resume from the newest checkpoint")
    facts = {
        "step": step,
        "hang_s": hang_s,
        "waiting": [{"collective": name, "line": line, "ranks": ranks} for (name, line), ranks in waiting.items()],
        "elsewhere": [
            {"rank": rank, "host": locations[rank].host, "line": line, "activity": reports[rank].activity}
            for (_, line), ranks in elsewhere.items()
            for rank in ranks
        ],
        "missing": [{"rank": rank, "host": locations[rank].host} for rank in missing],
        "reports": folder,
    }
    return HangVerdict("; ".join([begun, *sentences]), "\n".join(lines), facts)


def _waits(name: str | None, line: str, ranks: Sequence[int]) -> str:
    return f"{format_ranks(ranks)} {_verb(ranks, 'waits', 'wait')} in {name}, called from {line}"


def _ranks_and_hosts(ranks: Sequence[int], locations: Sequence[RankLocation]) -> str:
    """Ranks with their hosts, and with the process of a single rank."""
    hosts = list(dict.fromkeys(locations[rank].host for rank in ranks))
    where = f"{_verb(hosts, 'host', 'hosts')} {', '.join(hosts)}"
    return f"{format_ranks(ranks)} ({where}{f', pid {locations[ranks[0]].pid}' if len(ranks) == 1 else ''})"


def _by_host(ranks: Sequence[int], locations: Sequence[RankLocation]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(locations[rank].host, []).append(rank)
    return list(groups.values())


def _verb(subjects: Sequence[object], singular: str, plural: str) -> str:
    return singular if len(subjects) == 1 else plural


def _indented(stack: str) -> list[str]:
    return [f"    {line}" for line in stack.rstrip().splitlines()]
