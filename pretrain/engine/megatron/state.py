"""Tensors that a rank holds, under the names and shapes of the whole model: to save, to load into, to look at."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import torch
from torch import Tensor, nn

from pretrain.engine.base import GlobalPart, Piece
from pretrain.engine.boxes import pieces
from pretrain.engine.groups import Groups
from pretrain.engine.zero.base import ParameterRange, Sharding
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.models.placement import Parameter
from pretrain.process import watchdog
from pretrain.random.init import initial_values

Tensors = dict[str, Tensor]


class State:
    """The `parameters` of a rank, and what its `sharding` keeps of them (None: there is no optimizer)."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        groups: Groups,
        sharding: Sharding | None,
        biases: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`biases`: those of routers, by their names in the model."""
        # Sharding moves parameters into buffers and half precision replaces their values, never the objects.
        self._by_value = {parameter.value: parameter for parameter in parameters}
        self._groups, self._sharding, self._biases = groups, sharding, biases or {}

    def saved(self) -> dict[str, GlobalPart]:
        """`model/...` (fp32 weights, and biases of routers), and the optimizer's moments under names of theirs."""
        return self._parameter_parts() | self._bias_parts()

    def _bias_parts(self) -> dict[str, GlobalPart]:
        saves = self._groups.tensor_rank == 0 and self._groups.replica_rank == 0
        return {
            f"model/{name}": GlobalPart(tuple(value.shape), (Piece((0,), value),), saves)
            for name, value in self._biases.items()
        }

    def _parameter_parts(self) -> dict[str, GlobalPart]:
        if self._sharding is None:
            return self._parts((value, 0, {"model": value.detach().view(-1)}) for value in self._by_value)
        parts = self._parts((o.parameter, o.start, {"model": o.main, **o.moments}) for o in self._sharding.owned())
        frozen = ((r.parameter, r.start, {"model": r.value}) for r in self._sharding.frozen.ranges())
        parts |= self._parts(frozen, replicated=False)
        for parameter, factors in self._sharding.factors():  # every rank has them whole
            saves = self._groups.tensor_rank == 0 and self._groups.replica_rank == 0 and not parameter.copy
            for kind, value in factors.items():
                parts[f"{kind}/{parameter.name}"] = GlobalPart(
                    tuple(value.shape), (Piece((0,) * value.dim(), value),), saves
                )
        return parts

    def named(self, kind: str, ranges: Iterable[ParameterRange]) -> dict[str, GlobalPart]:
        """`ranges` of parameters as `kind/...`."""
        return self._parts((r.parameter, r.start, {kind: r.value}) for r in ranges)

    def _parts(
        self, ranges: Iterable[tuple[nn.Parameter, int, Tensors]], replicated: bool | None = None
    ) -> dict[str, GlobalPart]:
        """`ranges`: parameter, start of this rank's flat range of its local values, and the tensors of that range.
        `replicated`: whether data ranks have the same ranges; default: as the sharding says."""
        if replicated is None:
            replicated = self._sharding is None or self._sharding.replicated
        parts: dict[str, GlobalPart] = {}
        for value, start, tensors in ranges:
            parameter = self._by_value[value]
            replica_rank = self._groups.replica_rank_of(parameter.splits_experts)
            saves = parameter.primary and not (replicated and replica_rank)
            for kind, tensor in tensors.items():
                name = f"{kind}/{parameter.name}"
                assert name not in parts, "one rank never holds a parameter and its copy"
                boxes = pieces(tensor.view(-1), start, parameter.local_shape, parameter.offset)
                dtype = torch.float32 if kind == "model" else tensor.dtype
                parts[name] = GlobalPart(parameter.spec.shape, boxes, saves, dtype)
        return parts


def rows_state(memory: Mapping[str, Tensor], groups: Groups) -> dict[str, GlobalPart]:
    """The memory of layers, by their names, as `memory/...`: of each a row for each row of the global batch. Data ranks
    hold those of their rows."""
    saves = groups.tensor_rank == 0
    return {
        f"memory/{layer}": GlobalPart(
            (len(value) * groups.data_world, *value.shape[1:]),
            (Piece((groups.data_rank * len(value), 0, 0), value),),
            saves,
        )
        for layer, value in memory.items()
    }


def fill_initial(declarations: Iterable[ParameterSpec], seed: int, state: dict[str, GlobalPart]) -> None:
    """Writes the weights of `state` as they are declared to begin, and zeros for all else (biases of routers, moments):
    there may have been steps, which are to be forgotten."""
    by_name = {spec.name: spec for spec in declarations}
    for name, part in state.items():
        kind, _, parameter = name.partition("/")
        watchdog.kick()
        for piece in part.pieces:
            if kind == "model" and parameter in by_name:
                fill(by_name[parameter], seed, piece)
            else:
                piece.value.zero_()


def fill(spec: ParameterSpec, seed: int, piece: Piece) -> None:
    """Writes the initial values of one box. Rows that reach beyond it are made whole, and cut."""
    value, shape, offset, start = piece.value, spec.shape, piece.offset, 0
    while value.dim() > 1 and len(value) == 1:  # one row of these is all there is of the box
        start += offset[0] * prod(shape[1:])
        value, shape, offset = value[0], shape[1:], offset[1:]
    row = prod(shape[1:])
    rows = initial_values(spec, seed, start + offset[0] * row, len(value) * row).view(len(value), *shape[1:])
    inside = tuple(slice(o, o + n) for o, n in zip(offset[1:], value.shape[1:], strict=True))
    value.copy_(rows[:, *inside])
