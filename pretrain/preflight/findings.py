"""Findings of the tests: the measurements of all ranks -> a row for each node, and the nodes that have a problem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Any

from pretrain.preflight.machine import Disk
from pretrain.process.rank_location import RankLocation

# Factor below the median node's speed (of two nodes, the faster one's) from which a node is named.
SLOWER = {"product_flops": 1.5, "memory_bytes_per_s": 1.5, "link_bytes_per_s": 2.0, "disk_write_bytes_per_s": 3.0}
_CALLED = {
    "product_flops": ("matrix products", 1e12, "TFLOP/s"),
    "memory_bytes_per_s": ("its memory", 1e9, "GB/s"),
    "link_bytes_per_s": ("its links to other nodes", 1e9, "GB/s"),
    "disk_write_bytes_per_s": ("writing to run.dir", 1e6, "MB/s"),
}
CLOCKS_S = 1.0
"""Seconds that a node's clock may be off the median."""


@dataclass(frozen=True, kw_only=True)
class NodeMeasurement:
    """Measurements by one rank of its node."""

    product_flops: float
    product_right: bool
    memory_bytes_per_s: float
    clock_s: float
    """Seconds ahead of the median clock."""
    link_bytes_per_s: float | None
    """NodeMeasurement by the first rank of each node, if there are several nodes."""
    disk: Disk | str | None
    """NodeMeasurement by the first rank of each node. A text is the problem with it."""


@dataclass(frozen=True)
class NodeFinding:
    """Problem of a node."""

    node: str
    problem: str


@dataclass(frozen=True)
class Findings:
    """Conclusions from all measurements."""

    nodes: list[dict[str, Any]]
    """A row for each node."""
    wrong: list[NodeFinding]
    """Nodes that compute wrong results."""
    slow: list[NodeFinding]
    """Nodes that are slow or misconfigured."""


def find(measured: Sequence[NodeMeasurement], locations: Sequence[RankLocation]) -> Findings:
    """Findings from measurements and locations, both in order of ranks."""
    by_node: dict[str, list[int]] = {}
    for rank, location in enumerate(locations):
        by_node.setdefault(location.host, []).append(rank)
    nodes = [_row(node, ranks, [measured[rank] for rank in ranks]) for node, ranks in by_node.items()]
    wrong = [
        NodeFinding(
            location.host,
            f"{location.host} computes wrong products of matrices (rank {rank}, local rank {location.local_rank})",
        )
        for rank, (one, location) in enumerate(zip(measured, locations, strict=True))
        if not one.product_right
    ]
    slow = [
        NodeFinding(row["node"], f"{row['node']}: {row['disk_trouble']}")
        for row in nodes
        if row["disk_trouble"] is not None
    ]
    slow += [finding for name, factor in SLOWER.items() for finding in _slower(nodes, name, factor)]
    slow += [
        NodeFinding(
            row["node"],
            f"the clock of {row['node']} is {abs(row['clock_s']):.3g} s "
            f"{'ahead of' if row['clock_s'] > 0 else 'behind'} the others",
        )
        for row in nodes
        if abs(row["clock_s"]) > CLOCKS_S
    ]
    return Findings(nodes, wrong, slow)


def _row(node: str, ranks: Sequence[int], measured: Sequence[NodeMeasurement]) -> dict[str, Any]:
    first = measured[0]
    disk = first.disk if isinstance(first.disk, Disk) else None
    return {
        "node": node,
        "ranks": list(ranks),
        "product_flops": min(one.product_flops for one in measured),
        "memory_bytes_per_s": sum(one.memory_bytes_per_s for one in measured),
        "link_bytes_per_s": first.link_bytes_per_s,
        "disk_write_bytes_per_s": disk.write_bytes_per_s if disk else None,
        "disk_read_bytes_per_s": disk.read_bytes_per_s if disk else None,
        "disk_sync_s": disk.sync_s if disk else None,
        "disk_trouble": first.disk if isinstance(first.disk, str) else None,
        "clock_s": min((one.clock_s for one in measured), key=abs),
    }


def _slower(nodes: Sequence[Mapping[str, Any]], name: str, factor: float) -> list[NodeFinding]:
    speeds = [row[name] for row in nodes if row[name] is not None]
    if not speeds:
        return []
    usual = median_high(speeds)
    what, unit, units = _CALLED[name]
    return [
        NodeFinding(
            row["node"],
            f"{row['node']} is slow: {what}, {row[name] / unit:.3g} {units} where {usual / unit:.3g} are usual",
        )
        for row in nodes
        if row[name] is not None and row[name] * factor < usual
    ]
