"""Sees every operation of a rank on tensors without data: bytes that live on the device, floating-point operations,
exchanges between ranks, what makes the host wait for the device, and operators without a CUDA kernel."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeWork, ProcessGroup
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretrain.rehearse.cuda_kernels import without_cuda_kernel
from pretrain.rehearse.device_memory import DeviceMemory
from pretrain.rehearse.exchange import Exchange, RankGroup, Wait, bytes_to_others, read_exchange, read_group
from pretrain.rehearse.flops import operator_flops
from pretrain.rehearse.modules import ModuleTracker
from pretrain.rehearse.traffic import moved_bytes

DEVICE = torch.device("cuda", 0)
_PACKAGES = ("/pretrain/", "/megatron/", "/deepspeed/")
_MESSENGER = "/megatron/core/pipeline_parallel/p2p_communication.py"
"""file that sends all messages of schedules: lines of schedules say more"""
_RING_SHARES = {"allreduce": 2.0, "allgather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}
"""(n - 1) / n times this is the share of an exchange's bytes that each of n ranks sends in a ring"""

aten = torch.ops.aten
_WAITING = {aten.nonzero.default, aten.unique_consecutive.default, aten.masked_select.default}
_INDEXING = {
    *(aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten.index_put_.default),
    *(aten._unsafe_index_put.default, aten._index_put_impl_.default),
}
"""operators that copy indices to the device if the host holds them"""


@dataclass(frozen=True, kw_only=True, order=True)
class ExchangeKind:
    """Exchanges of one kind in one group of ranks."""

    group: str
    kind: str
    ranks: int
    device: str
    """`cuda`, or `cpu` for what hosts exchange"""


class LoggedWork(FakeWork):
    """The work of an exchange, which says when it is waited for. C++ hands out this very object as long as it lives."""

    def __init__(self, waited: Callable[[], None]) -> None:
        super().__init__()
        self._waited = waited

    def wait(self, *timeout: Any) -> bool:
        self._waited()
        return True

    def synchronize(self) -> None:
        self._waited()


class Recorder(TorchDispatchMode):
    """A dispatch mode above FakeTensorMode. Exchanges end here: each rank is the only process of its group."""

    def __init__(self, limit_bytes: float) -> None:
        """`limit_bytes`: memory of the device for tensors."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = "build"
        self.memory = DeviceMemory(limit_bytes)
        self.modules = ModuleTracker()
        self._without_kernel = without_cuda_kernel()
        self._known: dict[Exchange, Exchange] = {}
        """each exchange once, as steps repeat them"""
        self._works: list[LoggedWork] = []
        """work of each exchange of the run"""
        self._batch_position = 0
        """messages of the batch that is being sent, or 0"""
        self.communicators: set[RankGroup] = set()
        """groups that exchange memory of the device"""
        self.waiting: set[Any] = set(_WAITING)
        """operators whose host waits for the device"""
        self.approximations: set[str] = set()
        """names of `report.APPROXIMATIONS`: what was counted as something else"""
        self.clear()

    def clear(self) -> None:
        """Forgets what was counted so far, but not what lives."""
        self.memory.clear(self.phase)
        self.operators = 0
        self.flops: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()
        """bytes of device memory read and written, by operator"""
        self.exchanges: dict[ExchangeKind, list[float]] = {}
        """count, bytes, and bytes that this rank sends in a ring"""
        self.exchange_log: list[Exchange | Wait] = []
        """exchanges, and waits for them, in order"""
        self.waits: Counter[str] = Counter()
        self.without_kernel: Counter[str] = Counter()

    @contextmanager
    def in_phase(self, phase: str) -> Iterator[None]:
        """Counts what happens inside the block as of `phase`."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def wait(self, cause: str) -> None:
        """Notes that the host waits for the device."""
        line = project_line()
        self.waits[f"{cause} at {line}"] += 1
        self.exchange_log.append(Wait(exchange=None, line=line))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "c10d":
            return self._exchange(func, args)
        if func is aten._local_scalar_dense.default:
            return self._value(args[0])
        if func is aten.is_nonzero.default or func is aten.equal.default:
            if _on_device(args[0]):
                self.wait(func._opname)
            return True
        if func is aten.is_pinned.default:
            return False
        if func is aten._pin_memory.default:
            return args[0]
        if func is aten.record_stream.default:
            return None
        out = func(*args, **kwargs)
        generator = kwargs.get("generator")
        if isinstance(generator, torch.Generator) and any(map(_on_device, tree_leaves(out))):
            # Meta kernels take any generator. torch's own words:
            raise RuntimeError(f"Expected a 'cuda' device type for generator but found '{generator.device.type}'")
        if func.namespace != "prim":
            self._count(func, args, kwargs, out)
            self._track(out, func)
        if func is aten.cat.default and out.dim() == 1:
            self.memory.name_joined(out, args[0])
        return out

    @property
    def _current_phase(self) -> str:
        in_backward = self.phase == "forward" and torch._C._current_autograd_node() is not None
        return "backward" if in_backward else self.phase

    def _value(self, tensor: Tensor) -> float | int | bool:
        """Value that a tensor's only element is taken for. A flag says that nothing is wrong."""
        if _on_device(tensor):
            self.wait("item")
        if tensor.dtype == torch.bool:
            return False
        return 1.0 if tensor.dtype.is_floating_point else int(tensor.dtype != torch.uint8)

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self.operators += 1
        name = func._opname
        if name in ("_to_copy", "copy_"):
            source, target = (args[1], args[0]) if name == "copy_" else (args[0], out)
            waits = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
            # A number that is assigned to a slice arrives as a tensor here; on CUDA, torch fills the slice with it.
            fills = (
                name == "copy_" and isinstance(source, Tensor) and source.untyped_storage().nbytes() <= source.itemsize
            )
            if waits and not fills and isinstance(source, Tensor) and source.device.type != target.device.type:
                self.wait(f"copy from {source.device.type} to {target.device.type}")
        elif func in self.waiting and _on_device(args[0]):
            self.wait(name)
        elif func in _INDEXING and _on_device(args[0]):
            for index in args[1]:
                if isinstance(index, Tensor) and not _on_device(index):
                    self.wait("copy from cpu to cuda")
        lacks = func.name().removeprefix("aten::").removesuffix(".default") in self._without_kernel
        if lacks and any(map(_on_device, tree_leaves((args, out)))):
            self.without_kernel[f"{func.name()} at {project_line()}"] += 1
        flops = operator_flops(func, args, kwargs, out)
        if flops:
            self.flops[name] += flops
        moved = moved_bytes(func, args, kwargs, out)
        if moved:
            self.moved[name] += moved

    def _track(self, out: Any, func: Any) -> None:
        phase, module = self._current_phase, self.modules.current
        for tensor in filter(_on_device, tree_leaves(out)):
            if not self.memory.holds(tensor):
                self.memory.add(tensor, category=phase, operator=func._opname, module=module, line=project_line())
        self.memory.note_peak(phase)

    def exchange_objects(self, kind: str, group: ProcessGroup | None) -> None:
        """Notes an exchange of Python objects among the ranks of `group` (default: all)."""
        known = read_group(group or dist.distributed_c10d._get_default_group())
        exchange = Exchange(group=known, kind=kind, tensors=(), on_host=known.is_of_hosts, line=project_line())
        self._log(exchange).wait()

    @contextmanager
    def in_batch(self) -> Iterator[None]:
        """Notes that messages inside the block are sent and received at once."""
        self._batch_position = 1
        try:
            yield
        finally:
            self._batch_position = 0

    def _log(self, exchange: Exchange) -> LoggedWork:
        self.exchange_log.append(self._known.setdefault(exchange, exchange))
        number = len(self._works)
        # Barriers and objects are of use to hosts alone.
        waits_on_host = not exchange.tensors and not exchange.on_host

        def waited() -> None:
            line = project_line(skipping=_MESSENGER)
            self.exchange_log.append(Wait(exchange=number, line=line))
            if waits_on_host:
                self.exchange_log.append(Wait(exchange=None, line=line))

        self._works.append(LoggedWork(waited))
        return self._works[-1]

    def _exchange(self, func: Any, args: Any) -> Any:
        """Outputs by the operator's schema: the tensors that it was given, and work that is done."""
        if "start_coalescing" in func._opname:
            return None
        sides = [[t for t in tree_leaves(arg) if isinstance(t, Tensor)] for arg in args[:2]]
        size = max((sum(t.numel() * t.element_size() for t in side) for side in sides), default=0)
        device = next((t.device.type for side in sides for t in side), "")
        line = project_line(skipping=_MESSENGER)
        names_in, position = self.memory.names_in, self._batch_position
        exchange = read_exchange(func, args, names_in=names_in, batch_position=position, line=line)
        if self._batch_position:
            self._batch_position += 1
        work = self._log(exchange)
        if device == "cpu" and exchange.kind != "barrier" and exchange.group.name != "hosts":
            raise RuntimeError("No backend type associated with device type cpu")  # torch's own words
        if device == DEVICE.type:
            self.communicators.add(exchange.group)
        kind, ranks = exchange.kind, len(exchange.group.ranks)
        sent = bytes_to_others(func, args, dist.get_rank())
        if sent is None:
            sent = size * _RING_SHARES[kind] * (ranks - 1) / ranks if kind in _RING_SHARES else size
        entry = self.exchanges.setdefault(
            ExchangeKind(group=exchange.group.name, kind=kind, ranks=ranks, device=device), [0, 0, 0]
        )
        for index, value in enumerate((1, size, sent)):
            entry[index] += value
        self.operators += 1
        out = [work.boxed() if "Work" in str(one.type) else args[0] for one in func._schema.returns]
        return out[0] if len(out) == 1 else tuple(out)


def project_line(skipping: str = "") -> str:
    """The innermost line of the project, megatron-core or DeepSpeed that is being run, outside of a file whose path
    ends with `skipping`."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        package = next((one for one in _PACKAGES if one in path), None)
        skips = "/pretrain/rehearse/" in path or (skipping and path.endswith(skipping))
        if package is not None and not skips:
            return f"{package[1:]}{path.rpartition(package)[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"


def _on_device(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value.fake_device.type == DEVICE.type
