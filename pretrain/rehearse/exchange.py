"""One exchange between ranks, read from the operator that makes it: a collective, or one side of a message; and waits
for exchanges."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]
from torch.utils._pytree import tree_leaves

from pretrain.layout.group_names import group_name

_VARIANTS = ("_base", "_coalesced", "_tensor", "_into", "_single")
"""parts of operators' names that say how tensors are passed, not what is done"""
_EQUAL_INPUTS = ("allgather", "gather", "alltoall")
"""kinds whose inputs are of one shape on all ranks; of the others, their outputs are"""


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """A process group."""

    name: str
    description: str
    """description by the engine: ranks may have several groups of one name"""
    ranks: tuple[int, ...]

    @property
    def is_of_hosts(self) -> bool:
        """Whether its ranks exchange memory of hosts."""
        return self.name == "hosts"

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.ranks[:8])) + (", ..." if len(self.ranks) > 8 else "")
        return f"{self.name} group ({shown})"


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One rank's side of an exchange. Ranks that meet have to agree on all but the line."""

    group: RankGroup
    kind: str
    tensors: tuple[str, ...]
    """dtype and shape of each tensor that has one shape on all ranks"""
    reduction: str = ""
    root: int | None = None
    """global rank that a collective sends from, or to"""
    peer: int | None = None
    """global rank on the other side of a message"""
    batch_position: int = 0
    """position, from 1, in a batch of messages (`batch_isend_irecv`); 0: not in a batch"""
    names: tuple[str, ...] = ()
    """parameters whose weights or gradients the tensors hold, in order"""
    on_host: bool = False
    """whether hosts exchange it, without their devices"""
    line: str

    @property
    def is_message(self) -> bool:
        return self.peer is not None

    def __str__(self) -> str:
        what = f"{self.kind} {self.reduction}".strip() if self.reduction else self.kind
        root = f" with root {self.root}" if self.root is not None else ""
        return f"{what} {', '.join(self.tensors[:3])}{', ...' if len(self.tensors) > 3 else ''}{root} ({self.line})"

    def agrees(self, other: "Exchange") -> bool:
        """Whether both are the same collective, or the two sides of one message."""
        return (self.tensors, self.reduction, self.root) == (other.tensors, other.reduction, other.root) and (
            self.is_message or self.kind == other.kind
        )


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A wait of a host for its device or for an exchange of hosts, or of a device for another exchange."""

    exchange: int | None
    """number of the exchange among those of the rank's run, from 0; none: the host waits for its device"""
    line: str


Log = Mapping[str, Sequence[Exchange | Wait]]
"""exchanges and waits of a rank in order, by the part of the run: the build, and each step"""


def read_exchange(
    func: Any, args: Any, *, names_in: Callable[[Tensor], list[str]], batch_position: int, line: str
) -> Exchange:
    """The exchange that an operator of c10d makes. `names_in`: names of what a tensor holds."""
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    group = read_group(ProcessGroup.unbox(named["process_group"]))
    kind = exchange_kind(func)
    # With sizes for each peer, ranks send and receive as much as these say, each its own.
    of_sizes = any(named.get(name) for name in ("output_split_sizes", "input_split_sizes"))
    tensors = tree_leaves(args[1] if kind in _EQUAL_INPUTS else args[0])
    reduction = dist.ReduceOp.RedOpType(named["reduce_op"].op()).name.lower() if "reduce_op" in named else ""
    root, peer = named.get("root_rank"), named.get("dst", named.get("src"))
    of_hosts = kind != "barrier" and any(isinstance(one, Tensor) and one.device.type == "cpu" for one in tensors)
    return Exchange(
        group=group,
        kind=kind,
        tensors=()
        if kind == "barrier" or of_sizes
        else tuple(_described(one) for one in tensors if isinstance(one, Tensor)),
        reduction=reduction,
        names=_names(args[:2], names_in),
        root=None if root is None else group.ranks[root],
        peer=None if peer is None else group.ranks[peer],
        batch_position=batch_position,
        on_host=of_hosts or group.is_of_hosts,
        line=line,
    )


def bytes_to_others(func: Any, args: Any, rank: int) -> float | None:
    """Bytes that the global `rank` sends to others in an all-to-all that says how many rows each gets; None: another
    exchange."""
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    if not (sizes := named.get("input_split_sizes")):
        return None
    sent, ranks = named["input"], read_group(ProcessGroup.unbox(named["process_group"])).ranks
    rows = sum(size for to, size in zip(ranks, sizes, strict=True) if to != rank)
    return float(rows * sent[:1].numel() * sent.element_size())


def exchange_kind(func: Any) -> str:
    """Kind of exchange that an operator of c10d does, however its tensors are passed."""
    kind = str(func._opname).strip("_")
    for variant in _VARIANTS:
        kind = kind.replace(variant, "")
    return kind


def read_group(group: ProcessGroup) -> RankGroup:
    """The description and the global ranks of a process group."""
    registered = _resolve_process_group(group.group_name)
    words = group.group_desc.upper().removesuffix("_GROUP")
    return RankGroup(name=group_name(words), description=words, ranks=tuple(dist.get_process_group_ranks(registered)))


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _names(sides: Any, names_in: Callable[[Tensor], list[str]]) -> tuple[str, ...]:
    """Names of what is exchanged, from the side that has it all, or else from this rank's share."""
    tensors = [[one for one in tree_leaves(side) if isinstance(one, Tensor)] for side in sides]
    tensors.sort(key=lambda side: -sum(one.numel() for one in side))
    names = (tuple(name for one in side for name in names_in(one)) for side in tensors)
    return next(filter(None, names), ())
