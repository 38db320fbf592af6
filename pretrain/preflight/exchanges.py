"""Tests that ranks run together: speed of communication, and whether clocks agree. All functions are collective over
all ranks."""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from pretrain.engine.collective import gather

_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
_TIMES = 5


def all_reduce(device: torch.device) -> tuple[float, float]:
    """(seconds of an all-reduce of one number, bytes a second of one of many): of the fastest of a few, on the slowest
    rank."""
    small, large = torch.zeros(1, device=device), torch.zeros(_BYTES[device.type] // 4, device=device)
    small_s, large_s = (max(gather(min(_reduced(value) for _ in range(_TIMES)))) for value in (small, large))
    return small_s, _BYTES[device.type] / large_s


def links(leaders: Sequence[int], device: torch.device) -> list[float]:
    """Bytes a second, each way, between each of `leaders`, the first ranks of the nodes, and the better one of its two
    neighbours among them: a slow node has two slow links, its neighbours one. Nothing for one node."""
    size = _BYTES[device.type]
    own, other = torch.zeros(size // 4, device=device), torch.zeros(size // 4, device=device)
    best: dict[int, float] = {}
    for pairs in _rounds(leaders):
        dist.barrier()
        peer = next((pair[pair[0] == dist.get_rank()] for pair in pairs if dist.get_rank() in pair), None)
        if peer is not None:
            seconds = min(_exchanged(own, other, peer) for _ in range(2))
            best[dist.get_rank()] = max(best.get(dist.get_rank(), 0.0), size / seconds)
    everyone = gather(best.get(dist.get_rank()))
    return [speed for leader in leaders if (speed := everyone[leader]) is not None]


def clocks() -> list[float]:
    """Seconds by which each rank's clock is ahead of the median: the smallest of a few readings, each right after a
    barrier."""
    looks = []
    for _ in range(_TIMES):
        dist.barrier()
        looks.append(time.time())
    of_ranks = torch.tensor(gather(looks), dtype=torch.float64)
    ahead = of_ranks - of_ranks.median(0).values
    return [float(min(row.tolist(), key=abs)) for row in ahead]


def _rounds(leaders: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The neighbours in a ring, so that no one is in two pairs of a round."""
    count = len(leaders)
    if count < 2:
        return []
    pairs = [(leaders[at], leaders[(at + 1) % count]) for at in range(count if count > 2 else 1)]
    last = [pairs.pop()] if count % 2 and count > 2 else []
    return [chosen for chosen in (pairs[::2], pairs[1::2], last) if chosen]


def _reduced(value: torch.Tensor) -> float:
    dist.barrier()
    started_s = time.perf_counter()
    dist.all_reduce(value)
    value[:1].cpu()  # which waits for a GPU
    return time.perf_counter() - started_s


def _exchanged(own: torch.Tensor, other: torch.Tensor, peer: int) -> float:
    started_s = time.perf_counter()
    sends, receives = dist.P2POp(dist.isend, own, peer), dist.P2POp(dist.irecv, other, peer)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()
    other[:1].cpu()
    return time.perf_counter() - started_s
