"""What ranks have measured -> a row for each node, and what is wrong with which."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Any

from pretrain.preflight.machine import Disk
from pretrain.process.rank_location import RankLocation

# Of the median node's speed (of two nodes, the faster's), how many times slower a node is named.
SLOWER = {"product_flops": 1.5, "memory_bytes_per_s": 1.5, "link_bytes_per_s": 2.0, "disk_write_bytes_per_s": 3.0}
_CALLED = {
    "product_flops": ("matrix products", 1e12, "TFLOP/s"),
    "memory_bytes_per_s": ("its memory", 1e9, "GB/s"),
    "link_bytes_per_s": ("its links to other nodes", 1e9, "GB/s"),
    "disk_write_bytes_per_s": ("writing to run.dir", 1e6, "MB/s"),
}
CLOCKS_S = 1.0
"""by which a node's clock may be off the median"""


@dataclass(frozen=True)
class Measured:
    """By one rank."""

    product_flops: float
    product_right: bool
    memory_bytes_per_s: float
    clock_s: float
    """ahead of the median"""
    link_bytes_per_s: float | None
    """the first rank of a node's, where there are several nodes; `disk` likewise, also of one"""
    disk: Disk | str | None
    """text: what is wrong with it"""


@dataclass(frozen=True)
class Named:
    """A node, and what is wrong with it."""

    node: str
    said: str


@dataclass(frozen=True)
class Findings:
    """What they come to."""

    nodes: list[dict[str, Any]]
    """a row for each"""
    wrong: list[Named]
    """that can't be computed with"""
    slow: list[Named]
    """that are slow, or odd"""


def find(measured: Sequence[Measured], places: Sequence[RankLocation]) -> Findings:
    """Both by rank."""
    by_node: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        by_node.setdefault(place.host, []).append(rank)
    nodes = [_row(node, ranks, [measured[rank] for rank in ranks]) for node, ranks in by_node.items()]
    wrong = [
        Named(
            place.host, f"{place.host} computes wrong products of matrices (rank {rank}, local rank {place.local_rank})"
        )
        for rank, (one, place) in enumerate(zip(measured, places, strict=True))
        if not one.product_right
    ]
    slow = [
        Named(row["node"], f"{row['node']}: {row['disk_trouble']}") for row in nodes if row["disk_trouble"] is not None
    ]
    slow += [named for name, factor in SLOWER.items() for named in _slower(nodes, name, factor)]
    slow += [
        Named(
            row["node"],
            f"the clock of {row['node']} is {abs(row['clock_s']):.3g} s "
            f"{'ahead of' if row['clock_s'] > 0 else 'behind'} the others",
        )
        for row in nodes
        if abs(row["clock_s"]) > CLOCKS_S
    ]
    return Findings(nodes, wrong, slow)


def _row(node: str, ranks: Sequence[int], measured: Sequence[Measured]) -> dict[str, Any]:
    first = measured[0]
    told = first.disk if isinstance(first.disk, Disk) else None
    return {
        "node": node,
        "ranks": list(ranks),
        "product_flops": min(one.product_flops for one in measured),
        "memory_bytes_per_s": sum(one.memory_bytes_per_s for one in measured),
        "link_bytes_per_s": first.link_bytes_per_s,
        "disk_write_bytes_per_s": told.write_bytes_per_s if told else None,
        "disk_read_bytes_per_s": told.read_bytes_per_s if told else None,
        "disk_sync_s": told.sync_s if told else None,
        "disk_trouble": first.disk if isinstance(first.disk, str) else None,
        "clock_s": min((one.clock_s for one in measured), key=abs),
    }


def _slower(nodes: Sequence[Mapping[str, Any]], name: str, factor: float) -> list[Named]:
    speeds = [row[name] for row in nodes if row[name] is not None]
    if not speeds:
        return []
    usual = median_high(speeds)
    what, unit, units = _CALLED[name]
    return [
        Named(
            row["node"],
            f"{row['node']} is slow: {what}, {row[name] / unit:.3g} {units} where {usual / unit:.3g} are usual",
        )
        for row in nodes
        if row[name] is not None and row[name] * factor < usual
    ]
