"""The exchange of expert parallelism: rows of all experts, of this rank's tokens, for all rows of this rank's experts.

Each rank of a group holds an equal number of neighbouring experts. Rows travel to the ranks of their experts and their
results travel back, by an all-to-all of as many rows as there are (Lepikhin et al. 2020, arXiv 2006.16668, section 3).
An expert's rows lie by the rank that sent them, and within one by token: as the global batch has them. Rows do not
depend on each other, so each has the result that it has on one rank.

Shapes: N rows of this rank's tokens, by expert; M rows of this rank's experts; R ranks; L experts of a rank.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class ExpertExchange:
    """Where the rows of one pass of a layer go. Collective, as are its methods and their gradients."""

    def __init__(self, counts_E: Tensor, rows: int, group: dist.ProcessGroup) -> None:
        """`counts_E`: int64, how many of the `rows` of this rank's tokens each expert has."""
        self._group = group
        counts_RL = counts_E.view(group.size(), -1)
        received_RL = torch.empty_like(counts_RL)
        dist.all_to_all_single(received_RL, counts_RL.contiguous(), group=group)
        self.counts_L = received_RL.sum(0)
        """int64, rows of each expert of this rank"""
        self._sent, self._received = self._host_sizes(counts_RL.sum(1), received_RL.sum(1), rows)
        ranks, experts = received_RL.shape
        expert_RL = torch.arange(experts, device=counts_E.device).repeat(ranks)
        expert_M = expert_RL.repeat_interleave(received_RL.flatten(), output_size=sum(self._received))
        self._by_expert_M = torch.argsort(expert_M, stable=True)
        self._by_rank_M = torch.empty_like(self._by_expert_M)
        self._by_rank_M[self._by_expert_M] = torch.arange(len(expert_M), device=expert_M.device)

    def to_owners(self, rows_NH: Tensor) -> Tensor:
        """[N, H] -> [M, H], by expert."""
        rows_MH: Tensor = _RowExchange.apply(rows_NH, self, True)  # type: ignore[no-untyped-call]
        return rows_MH

    def to_senders(self, rows_MH: Tensor) -> Tensor:
        """[M, H] -> [N, H], the inverse of `to_owners`."""
        rows_NH: Tensor = _RowExchange.apply(rows_MH, self, False)  # type: ignore[no-untyped-call]
        return rows_NH

    def _host_sizes(self, sent_R: Tensor, received_R: Tensor, rows: int) -> tuple[list[int], list[int]]:
        """An all-to-all needs its sizes on the host, which waits for the device here."""
        sent, received = torch.stack([sent_R, received_R]).tolist()
        assert sum(sent) == rows
        return sent, received

    def run(self, rows: Tensor, to_owners: bool) -> Tensor:
        """`to_owners` or `to_senders`, without a gradient."""
        if to_owners:
            return self._all_to_all(rows, self._sent, self._received)[self._by_expert_M]
        return self._all_to_all(rows[self._by_rank_M], self._received, self._sent)

    def _all_to_all(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        arrived = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=self._group)
        return arrived


class _RowExchange(torch.autograd.Function):
    """A permutation of rows over ranks, so the gradient goes the inverse way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: ExpertExchange, to_owners: bool) -> Tensor:
        ctx.exchange, ctx.to_owners = exchange, to_owners
        return exchange.run(rows, to_owners)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.run(gradient, not ctx.to_owners), None, None
