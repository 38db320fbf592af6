"""Expert parallelism: ranks that share the experts of each layer are the same run, and what could go wrong is seen. So
it is where tensor ranks share no expert's features."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretrain.checkpoint import store
from pretrain.config.run_config import RunConfig
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.zero.gradient_norm import scale
from pretrain.run_dir.paths import complete_checkpoints
from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, rows, save, whole_state

TOLERANCE = 1e-5
BIASED, BALANCED = "biased_experts", "shared_experts"
DEEPSPEED = {"zero": 2, "zero_engine": "deepspeed"}
SLICES = {"tensor": 2, "sequence": True, "expert_tensor": 1}
LAYOUTS = [
    {"expert": 2},
    {**SLICES, "expert": 4},
    {"expert": 4, "zero": 0},
    {"expert": 2, "tensor": 2, "sequence": True, "recompute": "full"},
    {"expert": 2, "context": 2},
    {"expert": 2, "pipeline": 2, "virtual": 2},
    {"expert": 2, **DEEPSPEED},
    {"expert": 4, **DEEPSPEED, "zero": 1},
    {"expert": 2, "tensor": 2, "sequence": True, "recompute": "full", **DEEPSPEED},
    {"expert": 2, "pipeline": 2, "virtual": 2, **DEEPSPEED},
    {"expert": 2, "context": 2, **DEEPSPEED, "zero": 1},
    {"expert": 2, **DEEPSPEED, "offload_optimizer": True},
    SLICES,
    {**SLICES, "expert": 2, "zero": 0},
    {**SLICES, "expert": 2, "sequence": False},
    {"tensor": 4, "expert_tensor": 1, "expert": 2},
    {**SLICES, "expert": 4, "context": 2, "recompute": "full"},
    {**SLICES, "expert": 2, "pipeline": 2, "virtual": 2},
    {**SLICES, "pipeline": 2, "zero": 0},
    {**SLICES, "expert": 4, **DEEPSPEED},
    {**SLICES, **DEEPSPEED, "zero": 1},
    {**SLICES, "expert": 2, "recompute": "full", **DEEPSPEED},
]


def _run(parallel: dict[str, Any], family: str = BIASED, **sections: Any) -> Any:
    engine = build_engine(family_config(family, parallel=parallel, **sections))
    first = whole_state(engine)
    curve = train_family(engine, range(1, 3))
    engine.score(rows(engine, 1))
    curve += train_family(engine, range(3, 4))
    last = whole_state(engine)
    routed = {name: value for name, value in last.items() if "router/chosen" in name or ".router.bias" in name}
    return curve, _initial(first), routed


def _initial(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value for name, value in state.items() if ".mlp.experts." in name and name.startswith("model/")}


def run_layouts(parallels: list[dict[str, Any]], family: str, micro_sequences: int = 2) -> list[Any]:
    """Returns of each layout losses and norms, initial weights of experts, and counts and biases after three steps."""
    found = []
    for parallel in parallels:
        found.append(_run(parallel, family, batch={"micro_sequences": micro_sequences}))
        meet_again()
    return found


@pytest.mark.parametrize(
    ("layouts", "family"),
    [(LAYOUTS[:2], BIASED), *map(slow, [(LAYOUTS[:2], BALANCED), (LAYOUTS[2::2], BIASED), (LAYOUTS[3::2], BALANCED)])],
    ids=["one, biased", "one, balanced", "others, biased", "others, balanced"],
)
def test_ranks_that_share_experts_are_the_same_run(layouts: list[dict[str, Any]], family: str) -> None:
    """Initial weights, counts and biases to the bit; losses and norms within rounding."""
    ((curve, initial, routed),) = run_ranks(1, run_layouts, [{}], family)[0]
    assert initial
    assert routed
    for found, other_initial, other_routed in run_ranks(4, run_layouts, layouts, family)[0]:
        assert np.abs(np.array(found) - np.array(curve)).max() <= TOLERANCE
        for name, value in (initial | routed).items():
            assert np.array_equal((other_initial | other_routed)[name], value), name


def _at(found: Any) -> np.ndarray:
    return np.array(found)


def _with_fault(fault: str, parallel: dict[str, Any]) -> Any:
    """Losses and gradient norms of two steps."""
    if fault:
        _plant(fault)
    engine = build_engine(family_config(BALANCED, parallel=parallel))
    return train_family(engine, range(1, 3))


def _plant(fault: str) -> None:
    from pretrain.engine.megatron import built_model
    from pretrain.engine.zero.megatron import MegatronSharding
    from pretrain.models.expert_exchange import ExpertExchange
    from pretrain.models.experts import ExpertLayer

    if fault == "gradients of experts are summed over all data ranks":
        mark = built_model.mark_split
        built_model.mark_split = lambda placed, expert_ranks: mark(placed)
    elif fault == "the norm counts experts twice":
        square = MegatronSharding._square
        MegatronSharding._square = lambda self, optimizer: (  # type: ignore[method-assign]
            square(self, optimizer) * (2 if optimizer is self.optimizers[1] else 1)
        )
    elif fault == "the norm counts the experts of one rank":
        square = MegatronSharding._square
        MegatronSharding._square = lambda self, optimizer: (  # type: ignore[method-assign]
            square(self, optimizer) / (2 if optimizer is self.optimizers[1] else 1)
        )
    elif fault == "DeepSpeed sums gradients of experts over all data ranks":
        from pretrain.engine.groups import Groups

        Groups.replicas_of = lambda self, splits_experts: self.replica_group  # type: ignore[method-assign]
    elif fault == "a row returns in the place of another":
        run = ExpertExchange.run

        def swapped(self: ExpertExchange, rows: torch.Tensor, to_owners: bool) -> torch.Tensor:
            found = run(self, rows, to_owners)
            if not to_owners:
                found[[0, 1]] = found[[1, 0]]
            return found

        ExpertExchange.run = swapped  # type: ignore[method-assign]
    elif fault == "rows lie as they arrived":
        init = ExpertExchange.__init__

        def as_they_came(self: ExpertExchange, *arguments: Any) -> None:
            init(self, *arguments)
            self._by_expert_M = self._by_rank_M = torch.arange(len(self._by_expert_M))

        ExpertExchange.__init__ = as_they_came  # type: ignore[method-assign]
    elif fault == "the norm counts experts of the first tensor rank":
        mark_all = built_model.mark_split

        def as_copies(placed: Any, regroups_experts: bool) -> None:
            mark_all(placed, regroups_experts)
            for parameter in placed:
                if parameter.splits_experts:
                    parameter.value.tensor_model_parallel = False

        built_model.mark_split = as_copies
    elif fault == "experts are averaged over tensor ranks":
        reduce = MegatronSharding.reduce

        def averaged(self: MegatronSharding, token_count: int) -> None:
            reduce(self, token_count)
            for optimizer in self.optimizers[1:]:
                scale([main.grad for main in optimizer.get_parameters()], 1 / self._groups.tensor_world)

        MegatronSharding.reduce = averaged  # type: ignore[method-assign]
    elif fault == "tensor ranks compute the same slice":
        ExpertLayer._own_tokens = (  # type: ignore[method-assign]
            lambda self, tokens: slice(0, tokens // self.config.tensor_model_parallel_size)
        )
    else:
        raise AssertionError(fault)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "parallel"),
    [
        ("the norm counts experts of the first tensor rank", {**SLICES, "expert": 2, "zero": 0}),
        slow(("experts are averaged over tensor ranks", SLICES)),
        slow(("gradients of experts are summed over all data ranks", SLICES)),
        slow(("tensor ranks compute the same slice", {**SLICES, "expert": 2, "sequence": False})),
    ],
    ids=["norm", "gradients", "without tensor ranks", "slices"],
)
def test_faults_of_tensor_ranks_that_split_no_expert_are_seen(fault: str, parallel: dict[str, Any]) -> None:
    expected = _at(run_ranks(1, _with_fault, "", {})[0])
    right, wrong = (_at(run_ranks(2, _with_fault, planted, parallel)[0]) for planted in ("", fault))
    assert np.abs(right - expected).max() <= TOLERANCE
    assert np.abs(wrong - expected).max() > 10 * TOLERANCE


@pytest.mark.parametrize(
    ("fault", "zero"),
    [
        ("gradients of experts are summed over all data ranks", 1),
        slow(("gradients of experts are summed over all data ranks", 0)),
        slow(("the norm counts experts twice", 0)),
        slow(("the norm counts the experts of one rank", 1)),
        slow(("a row returns in the place of another", 1)),
        slow(("rows lie as they arrived", 1)),
        slow(("DeepSpeed sums gradients of experts over all data ranks", 2)),
    ],
)
def test_faults_of_ranks_that_share_experts_are_seen(fault: str, zero: int) -> None:
    expected = _at(run_ranks(1, _with_fault, "", {})[0])
    parallel = {"expert": 2, "zero": zero, "zero_engine": "deepspeed" if zero == 2 else "megatron"}
    right, wrong = (_at(run_ranks(2, _with_fault, planted, parallel)[0]) for planted in ("", fault))
    assert np.abs(right - expected).max() <= TOLERANCE
    assert np.abs(wrong - expected).max() > 10 * TOLERANCE


def _saved(directory: Path, parallel: dict[str, Any], precision: str) -> dict[str, np.ndarray]:
    engine = build_engine(family_config(BIASED, parallel=parallel, precision=precision))
    train_family(engine, range(1, 3))
    save(directory, engine, 2)
    return whole_state(engine)


def _resumed(directory: Path, parallel: dict[str, Any], precision: str) -> Any:
    engine = build_engine(family_config(BIASED, parallel=parallel, precision=precision))
    store.load(complete_checkpoints(directory)[-1], engine.state(), None)
    engine.state_loaded(2)
    return whole_state(engine), train_family(engine, range(3, 5))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", slow("bf16")])
@pytest.mark.parametrize(
    "saves",
    [{"expert": 4}, slow({"expert": 4, **DEEPSPEED}), slow(SLICES), slow({**SLICES, "expert": 4, **DEEPSPEED})],
    ids=["megatron", "deepspeed", "slices", "slices, deepspeed"],
)
def test_a_checkpoint_of_expert_ranks_is_read_by_any_layout(
    tmp_path: Path, precision: str, saves: dict[str, Any]
) -> None:
    saved = run_ranks(4, _saved, tmp_path, saves, precision)[0]
    assert any(".mlp.experts." in name and not name.startswith("model/") for name in saved), "moments, too"
    curves = []
    for ranks, parallel in (
        (1, {}),
        (2, {"tensor": 2}),
        (2, {"expert": 2, "zero": 0}),
        (4, {"expert": 2, **DEEPSPEED}),
        (2, {**SLICES, "expert": 2}),
    ):
        state, curve = run_ranks(ranks, _resumed, tmp_path, parallel, precision)[0]
        assert state.keys() == saved.keys()
        for name, value in saved.items():
            assert np.array_equal(state[name], value), name
        curves.append(_at(curve))
    tolerance = TOLERANCE if precision == "fp32" else 0.05
    assert max(np.abs(curve - curves[0]).max() for curve in curves[1:]) <= tolerance


def _to_one_expert(parallel: dict[str, Any]) -> Any:
    """All tokens choose the first two experts: other ranks have no row."""
    from pretrain.models import routing

    def first(preferences: torch.Tensor, settings: Any) -> torch.Tensor:
        return torch.arange(settings.top_k).expand(len(preferences), -1)

    routing.select = first
    return _run(parallel)[0]


@pytest.mark.slow
def test_ranks_whose_experts_nobody_chooses_take_part() -> None:
    expected = _at(run_ranks(1, _to_one_expert, {})[0])
    for parallel in (
        {"expert": 4},
        {"expert": 4, "recompute": "full", "zero": 0},
        {**SLICES, "expert": 4, "recompute": "full"},
    ):
        assert np.abs(_at(run_ranks(4, _to_one_expert, parallel)[0]) - expected).max() <= TOLERANCE


def _with_dense_layers(parallel: dict[str, Any]) -> Any:
    """Half of the layers have no experts, and so has a stage."""
    tree = family_config(BALANCED, parallel=parallel).model_dump(mode="json")
    tree["model"]["experts"]["dense_layers"] = 2
    engine: MegatronEngine = build_engine(RunConfig.model_validate(tree))
    return train_family(engine, range(1, 3))


@pytest.mark.slow
def test_a_stage_may_have_no_experts() -> None:
    expected = _at(run_ranks(1, _with_dense_layers, {})[0])
    for sharding in ({"zero": 0}, {"zero": 1}, DEEPSPEED):
        for ranks in ({}, SLICES):
            parallel = {"expert": 2, "pipeline": 2, **sharding, **ranks}
            assert np.abs(_at(run_ranks(4, _with_dense_layers, parallel)[0]) - expected).max() <= TOLERANCE


def _tuned(parallel: dict[str, Any], precision: str) -> Any:
    """Only the last layer and the head are trained: experts of others stay as they are, and are saved once."""
    finetune = {"train": "top", "layers": 1}
    engine = build_engine(family_config(BALANCED, parallel=parallel, precision=precision, finetune=finetune))
    curve = train_family(engine, range(1, 3))
    state = whole_state(engine)
    frozen = "model/decoder.layers.1.mlp.experts.linear_fc1.weight"
    assert frozen.replace("model/", "exp_avg/") not in state
    return curve, state[frozen]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_experts_that_are_frozen_are_saved_once(precision: str) -> None:
    expected, experts = run_ranks(1, _tuned, {}, precision)[0]
    for sharding in ({"zero": 0}, {"zero": 1}, DEEPSPEED, SLICES, {**SLICES, "zero": 0}):
        curve, found = run_ranks(4, _tuned, {"expert": 2, **sharding}, precision)[0]
        assert np.array_equal(found, experts)
        assert np.abs(_at(curve) - _at(expected)).max() <= (TOLERANCE if precision == "fp32" else 0.05)
