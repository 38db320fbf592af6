"""Layers of experts on several ranks: what layouts could compute otherwise, and whether the tests would see it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from pretrain.checkpoint import store
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.run_dir.paths import complete_checkpoints
from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import LENGTH, ROWS, build_engine, rows, save, whole_state

STEPS = 2
TOLERANCE = 1e-5
FAMILY, BIASED = "shared_experts", "biased_experts"


def _curves(parallels: list[dict[str, Any]], fault: str = "", family: str = FAMILY, **sections: Any) -> list[Any]:
    if fault:
        _plant(fault)
    found = []
    for parallel in parallels:
        engine = build_engine(family_config(family, parallel=parallel, **sections))
        found.append(train_family(engine, range(1, STEPS + 1)))
        meet_again()
    return found


def _plant(fault: str) -> None:
    from pretrain.engine.megatron import router_terms
    from pretrain.models import experts, route_terms, routing

    if fault == "weights of routes have a part of their gradient":
        summed = experts.copy_to_tensor_model_parallel_region
        experts.copy_to_tensor_model_parallel_region = lambda x: x if x.shape[-1] == 2 else summed(x)
    elif fault == "tokens have a part of their gradient":
        summed = experts.copy_to_tensor_model_parallel_region
        experts.copy_to_tensor_model_parallel_region = lambda x: summed(x) if x.shape[-1] == 2 else x
    elif fault == "the router's gradient is not summed over slices":
        init = routing.Router.__init__

        def unmarked(self: Any, *args: Any) -> None:
            init(self, *args)
            self.weight.sequence_parallel = False

        routing.Router.__init__ = unmarked  # type: ignore[method-assign]
    elif fault == "rows are counted as far as a rank has them":
        init_tally = route_terms.RouteTally.__init__
        route_terms.RouteTally.__init__ = lambda self, *args: init_tally(self, *args[:3])  # type: ignore[method-assign]
    elif fault == "a rank counts its own choices":
        summed_values = router_terms.RouterTerms._sum
        router_terms.RouterTerms._sum = lambda self, values: (  # type: ignore[method-assign]
            values if values.dtype == torch.int64 else summed_values(self, values)
        )
    else:
        raise AssertionError(fault)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "parallel"),
    [
        ("weights of routes have a part of their gradient", {"tensor": 2}),
        slow(("tokens have a part of their gradient", {"tensor": 2})),
        slow(("the router's gradient is not summed over slices", {"tensor": 2, "sequence": True})),
    ],
    ids=["weights", "tokens", "router"],
)
def test_faults_of_tensor_ranks_are_seen(fault: str, parallel: dict[str, Any]) -> None:
    (expected,) = run_ranks(1, _curves, [{}])[0]
    (right,) = run_ranks(2, _curves, [parallel])[0]
    (wrong,) = run_ranks(2, _curves, [parallel], fault)[0]
    assert np.abs(np.array(right) - np.array(expected)).max() <= TOLERANCE
    assert np.abs(np.array(wrong) - np.array(expected)).max() > 10 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel", [{"context": 2}, slow({"tensor": 2, "sequence": True})], ids=["context", "sequence"]
)
def test_rows_counted_in_part_would_be_seen(parallel: dict[str, Any]) -> None:
    """In the loss of sequences."""
    fault = "rows are counted as far as a rank has them"
    (expected,) = run_ranks(1, _curves, [{}], "", BIASED)[0]
    (right,) = run_ranks(2, _curves, [parallel], "", BIASED)[0]
    (wrong,) = run_ranks(2, _curves, [parallel], fault, BIASED)[0]
    assert np.abs(np.array(right) - np.array(expected)).max() <= TOLERANCE
    assert np.abs(np.array(wrong) - np.array(expected)).max() > 10 * TOLERANCE


def _micro_batches(sizes: list[int]) -> list[Any]:
    return [_curves([{}], batch={"sequences": 8, "micro_sequences": size})[0] for size in sizes]


def test_micro_batches_do_not_matter() -> None:
    one, two, four = (np.array(curve) for curve in run_ranks(1, _micro_batches, [1, 2, 4])[0])
    assert max(np.abs(two - one).max(), np.abs(four - one).max()) <= TOLERANCE


def _figures(parallels: list[dict[str, Any]], **sections: Any) -> list[Any]:
    """Returns the terms and figures of the last step on each layout, the state of its routers, and for each step the
    tokens of each expert, with how often ranks met and the host waited."""
    found = []
    for parallel in parallels:
        track = {"experts_every_steps": STEPS}
        engine = build_engine(family_config(FAMILY, parallel=parallel, track=track, **sections))
        source, results, calls = SyntheticStream(engine.config), [], []
        for step in range(1, STEPS + 1):
            batch = source.batch((step - 1) * ROWS, ROWS, engine.data_rank, engine.data_world)
            waits = [(torch.distributed, "all_reduce"), (torch.Tensor, "tolist"), (torch.Tensor, "item")]
            with ExitStack() as stack:
                every = [stack.enter_context(_counted(owner, name)) for owner, name in waits]
                results.append(engine.train_step(batch, 1e-3, step))
            calls.append([len(one) for one in every])
        means = {name: total / count for name, (total, count) in results[-1].terms.items()}
        experts = [(result.tokens_per_expert, of_step) for result, of_step in zip(results, calls, strict=True)]
        found.append((means, dict(results[-1].figures), whole_state(engine)["router/chosen"], experts))
        meet_again()
    return found


@contextmanager
def _counted(owner: Any, name: str) -> Iterator[list[str]]:
    """Inside, the list grows with each call of a function."""
    calls, real = list[str](), getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return real(*args, **kwargs)

    with patch.object(owner, name, counted):
        yield calls


@pytest.mark.parametrize(
    "layouts",
    [
        [{"tensor": 2, "sequence": True, "pipeline": 2, "recompute": "full"}, {"expert": 2}],
        slow(([{"pipeline": 4}, {"context": 4}],)),
    ],
    ids=["some", "others"],
)
def test_terms_and_counts_are_the_same_on_every_layout(layouts: list[dict[str, Any]]) -> None:
    ((terms, figures, chosen, experts),) = run_ranks(1, _figures, [{}])[0]
    assert set(terms) == {"tokens", "router_z", "router_balance"}
    assert terms["router_balance"] == pytest.approx(1, abs=0.3)
    assert 1 < figures["expert_load"] < 4
    assert 0.8 < figures["expert_entropy"] < 1
    assert chosen.shape == (3, 8, 2)
    assert (chosen[..., 1].sum(1) == 2 * ROWS * LENGTH).all(), "two experts of each token, in each layer"
    (unlogged, calls), (counts, calls_of_logged) = experts
    assert (unlogged, calls_of_logged) == ({}, calls), "no step exchanges or waits for counts"
    assert counts == {f"decoder.layers.{n}": chosen[n - 1, :, 1].astype(int).tolist() for n in (1, 2, 3)}
    assert type(counts["decoder.layers.1"][0]) is int
    for others, other_figures, other_chosen, other_experts in run_ranks(4, _figures, layouts)[0]:
        assert [one for one, _ in other_experts] == [{}, counts]
        assert other_experts[0][1] == other_experts[1][1]
        assert others == pytest.approx(terms, abs=TOLERANCE)
        assert other_figures == pytest.approx(figures, abs=TOLERANCE)
        assert np.array_equal(other_chosen, chosen)


RATE = 0.001  # of biases, in the family
EVERY = [
    {"tensor": 2, "sequence": True, "pipeline": 2, "recompute": "full"},
    {"context": 2, "pipeline": 2, "virtual": 2},
    {"tensor": 2, "zero": 1, "zero_engine": "deepspeed"},
    {"zero": 3, "zero_engine": "deepspeed"},
    {"context": 2, "zero": 1},
]


def _biases(engine: MegatronEngine) -> np.ndarray:
    """[layers of experts, experts]"""
    state = whole_state(engine)
    return np.stack([state[f"model/decoder.layers.{n}.mlp.router.bias"] for n in range(1, 4)])


def _moved(parallels: list[dict[str, Any]], micro_sequences: int = 2, fault: str = "") -> list[Any]:
    """Returns losses, and the biases of the start and after each of three steps, on each layout. Scoring in between
    moves none."""
    if fault:
        _plant(fault)
    found = []
    for parallel in parallels:
        batch = {"sequences": ROWS, "micro_sequences": micro_sequences}
        engine = build_engine(family_config(BIASED, parallel=parallel, batch=batch))
        losses, biases = [], [_biases(engine)]
        for step in range(1, 4):
            losses += train_family(engine, range(step, step + 1))
            if step == 1:
                engine.score(rows(engine, step))
            biases.append(_biases(engine))
        found.append((losses, biases))
        meet_again()
    return found


@pytest.mark.parametrize("layouts", [EVERY[:1], slow((EVERY[1:],))], ids=["one", "others"])
def test_biases_are_the_same_bits_on_every_layout(layouts: list[dict[str, Any]]) -> None:
    ((losses, biases),) = run_ranks(1, _moved, [{}])[0]
    assert not biases[0].any()
    steps = np.abs(np.diff(biases, axis=0))
    assert ((steps < 1e-7) | (np.abs(steps - RATE) < 1e-7)).all(), "by the rate, or where the load is the mean's not"
    assert (steps > 0).mean() > 0.8
    ((others, other_biases),) = run_ranks(1, _moved, [{}], 8)[0]
    assert np.array_equal(other_biases, biases)
    assert np.abs(np.array(others) - np.array(losses)).max() <= TOLERANCE
    for others, other_biases in run_ranks(4, _moved, layouts)[0]:
        assert np.array_equal(other_biases, biases)
        assert np.abs(np.array(others) - np.array(losses)).max() <= TOLERANCE


@pytest.mark.slow
def test_biases_by_the_choices_of_one_rank_would_be_seen() -> None:
    ((_, biases),) = run_ranks(1, _moved, [{}])[0]
    ((_, wrong),) = run_ranks(2, _moved, [{}], 2, "a rank counts its own choices")[0]
    assert not np.array_equal(wrong, biases)


def _saved(directory: Path, parallel: dict[str, Any], precision: str) -> Any:
    engine = build_engine(family_config(BIASED, parallel=parallel, precision=precision))
    train_family(engine, range(1, 3))
    save(directory, engine, 2)
    return _biases(engine), train_family(engine, range(3, 5)), _biases(engine)


def _resumed(directory: Path, parallel: dict[str, Any], precision: str) -> Any:
    engine = build_engine(family_config(BIASED, parallel=parallel, precision=precision))
    store.load(complete_checkpoints(directory)[-1], engine.state(), None)
    engine.state_loaded(2)
    return _biases(engine), train_family(engine, range(3, 5)), _biases(engine)


def _scored(directory: Path) -> Any:
    engine = build_engine(family_config(BIASED), train=False)
    store.load(complete_checkpoints(directory)[-1], engine.state(), None)
    biases = _biases(engine)
    engine.score(rows(engine, 1))
    return biases, _biases(engine)


def test_biases_move_between_layouts_and_resume_bit_for_bit(tmp_path: Path) -> None:
    layout = {"tensor": 2, "sequence": True}
    saved = run_ranks(2, _saved, tmp_path, layout, "fp32")[0]
    assert saved[0].any()
    alike, moved = run_ranks(2, _resumed, tmp_path, layout, "fp32")[0], run_ranks(1, _resumed, tmp_path, {}, "fp32")[0]
    assert np.array_equal(alike[0], saved[0])
    assert np.array_equal(moved[0], saved[0])
    assert alike[1] == saved[1]
    assert np.array_equal(alike[2], saved[2])
    assert np.array_equal(moved[2], saved[2])
    for scored in run_ranks(1, _scored, tmp_path)[0]:
        assert np.array_equal(scored, saved[0]), "one that only scores reads them, and moves none"


@pytest.mark.slow
def test_biases_are_fp32_whatever_is_computed_in(tmp_path: Path) -> None:
    for precision, parallel in (("bf16", {"zero": 3, "zero_engine": "deepspeed"}), ("bf16", {"tensor": 2})):
        directory = tmp_path / str(len(parallel))
        before, losses, after = run_ranks(2, _saved, directory, parallel, precision)[0]
        steps = np.abs(after - before) / np.float32(RATE)
        assert np.allclose(steps, steps.round(), atol=1e-4), "multiples of the rate, which bf16 does not have"
        again = run_ranks(2, _resumed, directory, parallel, precision)[0]
        assert np.array_equal(again[0], before)
        assert again[1] == losses
        assert np.array_equal(again[2], after)


def _skipped() -> Any:
    engine = build_engine(family_config(BIASED))
    train_family(engine, range(1, 2))
    before = _biases(engine)
    norm = engine.sharding.norm  # type: ignore[union-attr]
    engine.sharding.norm = lambda: norm() * np.inf  # type: ignore[union-attr, method-assign]
    train_family(engine, range(2, 3))
    return before, _biases(engine), engine.updates


def test_a_step_that_is_skipped_moves_no_bias() -> None:
    before, after, updates = run_ranks(1, _skipped)[0]
    assert updates == 1
    assert np.array_equal(before, after)


def _in_half(parallel: dict[str, Any]) -> list[Any]:
    return _curves([parallel], precision="bf16")


@pytest.mark.slow
def test_half_precision_departs_by_its_rounding() -> None:
    """A token near a border may go to another expert, as rounding decides."""
    (expected,) = run_ranks(1, _in_half, {})[0]
    (found,) = run_ranks(2, _in_half, {"tensor": 2, "sequence": True})[0]
    assert np.abs(np.array(found) - np.array(expected)).max() <= 0.05
