"""Modules as built, joined with what is declared of their parameters."""

import pytest
import torch
from torch import nn

from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.model_spec.parameters import StageParameter
from pretrain.models.placement import mark_split, parameters


class Chunk(nn.Module):
    """The model chunk of a stage whose only layer is the model's sixth."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 3, bias=False))])
        self.layers[0].global_name = "decoder.layers.5"  # type: ignore[assignment]


def _held(name: str, shape: tuple[int, ...], *axes: str | None) -> StageParameter:
    return StageParameter(
        ParameterSpec(name=name, shape=shape, axes=axes, init=Normal((1.0,)), is_matrix=True),
        name,
        copy=False,
        stages="own",
    )


TABLE = _held("embedding.weight", (10, 4), None, None)
LINEAR = _held("decoder.layers.5.0.weight", (6, 8), "tensor", None)
SECOND = {"tensor": (1, 2)}
"""The second of two tensor ranks."""


def test_names_parts_and_who_counts_them() -> None:
    table, linear = parameters(Chunk(), [TABLE, LINEAR], SECOND)
    assert (table.name, table.local_shape, table.offset, table.primary) == ("embedding.weight", (10, 4), (0, 0), False)
    assert (linear.name, linear.local_shape, linear.offset, linear.primary) == (
        "decoder.layers.5.0.weight", (3, 8), (3, 0), True,
    )  # fmt: skip
    first, _ = parameters(Chunk(), [TABLE, LINEAR], {"tensor": (0, 2)})
    assert first.primary


def test_a_copy_goes_by_the_name_of_its_original_and_is_counted_there() -> None:
    copy = StageParameter(_held("words", (10, 4), None, None).spec, "embedding.weight", copy=True, stages="ends")
    found, _ = parameters(Chunk(), [copy, LINEAR], {"tensor": (0, 2)})
    assert (found.name, found.copy, found.tied, found.primary) == ("words", True, True, False)


def test_a_parameter_that_is_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parameter decoder\.layers\.5\.0\.weight is built and not declared"):
        parameters(Chunk(), [TABLE], SECOND)


def test_a_parameter_that_is_not_built_is_refused() -> None:
    with pytest.raises(ValueError, match="parameter more is declared and not built"):
        parameters(Chunk(), [TABLE, LINEAR, _held("more", (3,), None)], SECOND)


@pytest.mark.parametrize(
    "wrong",
    [
        _held(LINEAR.name, (6, 8), None, "tensor"),
        _held(LINEAR.name, (6, 8), None, None),
        _held(LINEAR.name, (3, 8), "tensor", None),
        _held(LINEAR.name, (48,), "tensor"),
    ],
    ids=["other dimension", "not shared", "other shape", "other dimensions"],
)
def test_a_parameter_that_is_declared_otherwise_is_refused(wrong: StageParameter) -> None:
    with pytest.raises(ValueError, match=r"is declared as .*, shared by .*and \(3, 8\) was built"):
        parameters(Chunk(), [TABLE, wrong], SECOND)


def test_a_module_that_is_used_twice_is_one_parameter() -> None:
    chunk = Chunk()
    chunk.layers.append(chunk.layers[0])
    assert len(parameters(chunk, [TABLE, LINEAR], SECOND)) == 2


def test_megatron_core_is_told_what_is_declared_whatever_a_module_said() -> None:
    chunk = Chunk()
    chunk.embedding.weight.tensor_model_parallel = True  # type: ignore[attr-defined]
    mark_split(parameters(chunk, [TABLE, LINEAR], SECOND))
    linear = chunk.layers[0][0].weight  # type: ignore[index]
    assert (linear.tensor_model_parallel, linear.partition_dim) == (True, 0)
    assert not hasattr(chunk.embedding.weight, "tensor_model_parallel")


def test_three_dimensions_and_another_axis() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(2, 6, 2))

    chunk = nn.Module()
    chunk.experts = Experts()
    held = _held("experts.weight", (8, 6, 4), "expert", None, "expert_tensor")
    (found,) = parameters(chunk, [held], {"tensor": (1, 2), "expert": (3, 4), "expert_tensor": (1, 2)})
    assert (found.offset, found.primary) == ((6, 0, 2), True)


def test_experts_that_tensor_ranks_do_not_split_are_others_on_each() -> None:
    """So that the second tensor rank counts and saves what it has, where it would leave a copy to the first."""
    chunk = nn.Module()
    chunk.experts = nn.Module()
    chunk.experts.weight = nn.Parameter(torch.empty(2, 6, 4))
    held = _held("experts.weight", (8, 6, 4), "expert", None, "expert_tensor")
    (found,) = parameters(chunk, [held], {"tensor": (1, 2), "expert": (3, 4), "expert_tensor": (0, 1)})
    assert (found.local_shape, found.offset, found.primary) == ((2, 6, 4), (6, 0, 0), True)
    mark_split([found], regroups_experts=True)
    assert found.value.tensor_model_parallel
    assert not found.value.allreduce
