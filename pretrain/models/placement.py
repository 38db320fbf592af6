"""The parameters of a model chunk as built, joined with what is declared of them.

Modules are named by where they lie in their chunk: megatron-core numbers layers from zero on each stage and keeps a
second copy of a tied embedding on the last one. Layers that are one go by the first name that the chunk has for them.
Each parameter's name in the whole model leads to its specification (`model_spec`), from which its share of
the whole follows; a module that was built otherwise is refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from torch import nn

from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.model_spec.parameters import StageParameter, Stages
from pretrain.random.dropout import Dropout

Axes = Mapping[str, tuple[int, int]]
"""(rank, number of ranks) on each axis"""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of this rank and its place in the whole model."""

    spec: ParameterSpec
    value: nn.Parameter
    local_shape: tuple[int, ...]
    """shape of this rank's part. Under ZeRO stage 3 the value itself exists only while it is in use"""
    offset: tuple[int, ...]
    """where this rank's part begins in the whole"""
    copy: bool
    """on another stage than the first, of a tied embedding or of layers that are one: it goes by the first's name"""
    stages: Stages
    """stages that hold it and must agree on its gradient"""
    differs: bool = False
    """other tensor ranks hold other values, or the same as those of other tokens, though none of them split it: of
    experts that tensor ranks do not share"""
    primary: bool
    """this rank counts and saves the values, which other tensor ranks or stages may hold too"""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def splits_experts(self) -> bool:
        """Whether it is of experts, of which expert ranks hold different ones."""
        return "expert" in self.spec.axes

    @property
    def tied(self) -> bool:
        """Other stages hold it, too."""
        return self.stages != "own"


def parameters(chunk: nn.Module, held: Iterable[StageParameter], axes: Axes) -> list[Parameter]:
    """The parameters of one (unwrapped) model chunk, on a rank that is there on `axes`. Raises ValueError unless they
    are just those that are declared to be `held` by it."""
    left = {h.name: h for h in held}
    placed = []
    for name, value in _named_parameters(chunk):
        if name not in left:
            raise ValueError(f"parameter {name} is built and not declared: see docs/add-a-parameter.md")
        placed.append(_place(left.pop(name), value, axes))
    if left:
        raise ValueError(f"parameter {next(iter(left))} is declared and not built: see docs/add-a-parameter.md")
    return placed


def mark_shared(placed: Iterable[Parameter]) -> None:
    """Tells megatron-core which parameters every stage holds, as for a tied embedding: its sharding must cut them
    the same on all, and its norm count them once."""
    for parameter in placed:
        if parameter.stages == "all":
            parameter.value.shared_embedding = True  # type: ignore[attr-defined]
            parameter.value.shared = parameter.copy  # type: ignore[attr-defined]


def mark_split(placed: Iterable[Parameter], regroups_experts: bool = False) -> None:
    """Tells megatron-core which parameters are split over tensor ranks (its own initialisation would do so), and, if
    `regroups_experts`, that it has to sum gradients of experts over other ranks than those of the rest."""
    for parameter in placed:
        if parameter.splits_experts and regroups_experts:
            parameter.value.allreduce = False  # type: ignore[attr-defined]
        for attribute in ("tensor_model_parallel", "partition_dim", "partition_stride"):
            if hasattr(parameter.value, attribute):
                delattr(parameter.value, attribute)
        # Experts that tensor ranks do not split are others on each of them: the norm counts them as if they were split.
        split = [at for at, axis in enumerate(parameter.spec.axes) if axis in ("tensor", "expert_tensor")]
        for dim in split or [0] * parameter.differs:
            set_tensor_model_parallel_attributes(parameter.value, True, dim, 1)


def place_dropout(chunk: nn.Module, axes: Axes, prefix: str = "") -> None:
    """Tells each dropout site its name in the whole model, after `prefix`, and which part of it is this rank's."""
    for name, module in _named_modules(chunk):
        if isinstance(module, Dropout):
            module.place(prefix + name, axes)


def _place(held: StageParameter, value: nn.Parameter, axes: Axes) -> Parameter:
    spec = held.spec
    ranks = {axis: count for axis, (_, count) in axes.items()}
    local = spec.local_shape(ranks)
    built = tuple(getattr(value, "ds_shape", value.shape))
    if built != local:
        shares = ", ".join(f"{axis} {size}" for axis, size in ranks.items())
        raise ValueError(
            f"parameter {held.name} is declared as {spec.shape}, shared by {spec.axes}: that is {local} with "
            f"{shares}, and {built} was built"
        )
    at = (0 if axis is None or axis not in axes else axes[axis][0] for axis in spec.axes)
    offset = tuple(rank * size for rank, size in zip(at, local, strict=True))
    # Which of the ranks that hold the same part of it, with other tokens, counts a range is the sharding's choice.
    splits = ("expert", "expert_tensor") if "expert" in spec.axes else ("tensor",)
    first = all(axes.get(axis, (0, 1))[0] == 0 for axis in splits if axis not in spec.axes)
    return Parameter(
        spec=spec,
        value=value,
        local_shape=local,
        offset=offset,
        copy=held.copy,
        stages=held.stages,
        differs="expert" in spec.axes and ranks.get("expert_tensor", 1) < ranks.get("tensor", 1),
        primary=first and not held.copy,
    )


def _named_parameters(chunk: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    seen = set()
    for module_name, module in _named_modules(chunk):
        for leaf, value in module.named_parameters(recurse=False):
            if value not in seen:
                seen.add(value)
                yield f"{module_name}.{leaf}", value


def _named_modules(chunk: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Under names in the whole model. Where a module has a `global_name`, that is its name, and the names of modules in
    it begin so."""
    names: dict[str, str] = {}
    for path, module in chunk.named_modules():
        above, _, leaf = path.rpartition(".")
        below = f"{names[above]}.{leaf}" if names.get(above) else leaf
        names[path] = getattr(module, "global_name", None) or below
        yield names[path], module
