"""What tests of machines come to: which node is named, and for what."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pretrain.preflight import machine
from pretrain.preflight.findings import NodeFinding, NodeMeasurement, find
from pretrain.preflight.machine import Disk
from pretrain.process.rank_location import RankLocation

PLACES = [RankLocation(f"node{rank // 2}", rank % 2, rank) for rank in range(8)]
DISK = Disk(1e8, 2e8, 1e-3)


def measured(rank: int, **other: object) -> NodeMeasurement:
    first = rank % 2 == 0
    values = {
        "product_flops": 1e12, "product_right": True, "memory_bytes_per_s": 1e10, "clock_s": 0.01,
        "link_bytes_per_s": 1e9 if first else None, "disk": DISK if first else None,
    }  # fmt: skip
    return NodeMeasurement(**{**values, **other})  # type: ignore[arg-type]


def found(rank: int, **other: object) -> tuple[list[str], list[str]]:
    findings = find([measured(at, **(other if at == rank else {})) for at in range(8)], PLACES)
    assert all(named.node in named.problem for named in (*findings.wrong, *findings.slow))
    return [named.problem for named in findings.wrong], [named.problem for named in findings.slow]


def test_where_all_is_well_nothing_is_named_and_each_node_has_a_row() -> None:
    findings = find([measured(rank) for rank in range(8)], PLACES)
    assert (findings.wrong, findings.slow) == ([], [])
    assert [row["node"] for row in findings.nodes] == ["node0", "node1", "node2", "node3"]
    assert findings.nodes[1]["ranks"] == [2, 3]
    assert findings.nodes[1]["memory_bytes_per_s"] == 2e10, "of its ranks together"


@pytest.mark.parametrize(
    ("rank", "other", "sentence"),
    [
        (3, {"product_flops": 0.6e12}, "node1 is slow: matrix products, 0.6 TFLOP/s where 1 are usual"),
        (3, {"memory_bytes_per_s": 1e9}, "node1 is slow: its memory, 11 GB/s where 20 are usual"),
        (2, {"link_bytes_per_s": 4e8}, "node1 is slow: its links to other nodes, 0.4 GB/s where 1 are usual"),
        (2, {"disk": Disk(3e7, 1, 1)}, "node1 is slow: writing to run.dir, 30 MB/s where 100 are usual"),
        (2, {"disk": "run.dir cannot be used from there (X)"}, "node1: run.dir cannot be used from there (X)"),
    ],
)
def test_a_slow_node_is_named(rank: int, other: dict[str, object], sentence: str) -> None:
    assert found(rank, **other) == ([], [sentence])


@pytest.mark.parametrize("other", [{"product_flops": 0.7e12}, {"disk": Disk(4e7, 1, 1)}, {"clock_s": 0.9}])
def test_a_little_slower_is_usual(other: dict[str, object]) -> None:
    assert found(2, **other) == ([], [])


def test_a_clock_that_is_off_is_named() -> None:
    findings = find([measured(rank, clock_s=-3.0 if rank in (4, 5) else 0.0) for rank in range(8)], PLACES)
    assert findings.slow == [NodeFinding("node2", "the clock of node2 is 3 s behind the others")]


def test_of_two_nodes_the_slower_one_is_named() -> None:
    findings = find([measured(0), measured(2, product_flops=1e11)], [PLACES[0], PLACES[2]])
    assert [named.node for named in findings.slow] == ["node1"]


def test_wrong_products_name_node_and_rank() -> None:
    wrong, _ = found(5, product_right=False)
    assert wrong == ["node2 computes wrong products of matrices (rank 5, local rank 1)"]


def test_a_product_is_right_here() -> None:
    flops, right = machine.product(torch.device("cpu"))
    assert right
    assert flops > 0


@pytest.mark.parametrize("element", [(0, 0), (511, 511), (17, 200)])
def test_one_wrong_number_of_a_product_is_found(element: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.matmul

    def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        plain(a, b, out=out)
        out[element] += 1
        return out

    monkeypatch.setattr(torch, "matmul", matmul)
    assert not machine.product(torch.device("cpu"))[1]


def test_its_numbers_are_exact_in_bf16() -> None:
    """A product as GPUs compute it: 4096 wide."""
    side = 4096
    left, right = machine._signs(side, 7), machine._signs(side, 11)
    index = np.arange(side)
    kept = (index[:, None] + index) % (side // machine._NONZERO) == 0
    rows = np.random.default_rng(0).integers(0, side, 64)
    largest = np.abs(left[rows].astype(np.float32) @ (right * kept).astype(np.float32)).max()
    assert 0 < largest <= 256
    assert {-1, 0, 1} == set(np.unique(left).tolist())


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    told = machine.disk(tmp_path / "run" / "test.tmp")
    assert min(told.write_bytes_per_s, told.read_bytes_per_s, told.sync_s) > 0
    assert list((tmp_path / "run").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        machine.disk(tmp_path / "file" / "test.tmp")


def test_memory_is_measured() -> None:
    assert machine.memory() > 1e6
