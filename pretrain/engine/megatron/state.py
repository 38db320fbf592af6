"""What a rank holds, under the names and shapes of the whole model: to save, to load into, to look at."""

from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor, nn

from pretrain.config.run_config import RunConfig
from pretrain.engine.base import GlobalPart, Piece
from pretrain.engine.boxes import pieces
from pretrain.engine.groups import Groups
from pretrain.engine.zero.base import Range, Sharding
from pretrain.models.placement import Parameter
from pretrain.random.init import initial_values

Tensors = dict[str, Tensor]


class State:
    """The `parameters` of a rank, and what its `sharding` keeps of them (None: there is no optimizer)."""

    def __init__(self, parameters: Sequence[Parameter], groups: Groups, sharding: Sharding | None) -> None:
        # Sharding moves parameters into buffers and half precision replaces their values, never the objects.
        self._by_value = {parameter.value: parameter for parameter in parameters}
        self._groups, self._sharding = groups, sharding

    def saved(self) -> dict[str, GlobalPart]:
        """`model/...` (fp32 weights), and the optimizer's moments under names of theirs."""
        if self._sharding is None:
            return self._parts((value, 0, {"model": value.detach().view(-1)}) for value in self._by_value)
        parts = self._parts((o.parameter, o.start, {"model": o.main, **o.moments}) for o in self._sharding.owned())
        for parameter, factors in self._sharding.factors():  # every rank has them whole
            saves = self._groups.tensor_rank == 0 and self._groups.replica_rank == 0 and not parameter.copy
            for kind, value in factors.items():
                parts[f"{kind}/{parameter.name}"] = GlobalPart(tuple(value.shape), (Piece((0,), value),), saves)
        return parts

    def named(self, kind: str, ranges: Iterable[Range]) -> dict[str, GlobalPart]:
        """`ranges` of parameters as `kind/...`."""
        return self._parts((r.parameter, r.start, {kind: r.value}) for r in ranges)

    def _parts(self, held: Iterable[tuple[nn.Parameter, int, Tensors]]) -> dict[str, GlobalPart]:
        """`held`: parameter, where this rank's flat range of its local values begins, and the tensors of that range."""
        replicated = self._sharding is None or self._sharding.replicated
        parts: dict[str, GlobalPart] = {}
        for value, start, tensors in held:
            parameter = self._by_value[value]
            saves = not (replicated and self._groups.replica_rank) and not parameter.copy
            saves = saves and (parameter.split_dim is not None or self._groups.tensor_rank == 0)
            shape = parameter.global_shape(self._groups.tensor_world)
            local, offset = parameter.local_shape, parameter.offset(self._groups.tensor_rank)
            for kind, tensor in tensors.items():
                name = f"{kind}/{parameter.name}"
                assert name not in parts, "one rank never holds a tied embedding and its copy"
                parts[name] = GlobalPart(shape, pieces(tensor.view(-1), start, local, offset), saves)
        return parts


def fill_initial(config: RunConfig, state: dict[str, GlobalPart]) -> None:
    """Writes the weights of `state` from (seed, name, shape)."""
    for name, part in state.items():
        kind, _, parameter = name.partition("/")
        for piece in part.pieces if kind == "model" else ():
            _fill(config, parameter, part.shape, piece)


def _fill(config: RunConfig, name: str, shape: tuple[int, ...], piece: Piece) -> None:
    """Writes the initial values of one box, row by row where the box does not span whole rows."""
    values = partial(initial_values, config.model, config.run.seed, name, shape)
    box = piece.value.shape
    if len(shape) == 1:
        piece.value.copy_(values(piece.offset[0], box[0]))
        return
    (row, column), columns = piece.offset, shape[1]
    if box[1] == columns:
        piece.value.copy_(values(row * columns, box[0] * columns).view(box))
        return
    whole = values(row * columns, box[0] * columns).view(box[0], columns)
    piece.value.copy_(whole[:, column : column + box[1]])
