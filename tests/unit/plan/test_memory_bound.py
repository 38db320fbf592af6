"""A run that can't be held is refused at once, whatever makes it too large."""

import pytest

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, plan_layout
from pretrain.model_spec.parameters import num_parameters, num_rank_parameters
from pretrain.plan.memory import state_bytes
from pretrain.plan.memory_bound import check_bound, count_parameters, least_bytes
from pretrain.plan.memory_check import check_memory
from tests.helpers.small_configs import config

GIB = 2**30
ONE_RANK = Layout(world=1)


@pytest.mark.parametrize(
    "sizes",
    [
        {"layers": 700},
        {"layers": 300, "family": "t5", "positions": "relative", "norm_type": "rms", "bias": False},
        {"layers": 2, "encoder_layers": 400, "family": "transformer", "positions": "sinusoidal"},
    ],
)
def test_parameters_of_many_layers_are_counted_without_listing_them(sizes: dict[str, object]) -> None:
    model = _config(sizes).model
    assert count_parameters(model) == num_parameters(model)


def test_parameters_of_a_billion_layers_take_no_time() -> None:
    one, two = (count_parameters(_config({"layers": layers}).model) for layers in (10**9, 2 * 10**9))
    assert two - one == 10**9 * (count_parameters(_config({"layers": 2}).model) - count_parameters(_config({}).model))


def test_no_rank_holds_less_than_is_counted() -> None:
    run = config(parallel={"tensor": 2, "pipeline": 4})
    layout = plan_layout(run, 16)
    held = max(num_rank_parameters(run.model, layout, stage) for stage in range(4))
    state = state_bytes(held, layout, "fp32")
    least = least_bytes(run, layout)
    assert least["weights"] + least["gradients"] + least["optimizer states"] <= state.total
    assert least["weights"] > 0.5 * state.weights


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": {"layers": 10**9}}, ["optimizer states", "model.layers=1000000000 is too many"]),
        ({"model": {"hidden": 12 * 10**9}}, ["GiB", "make the model smaller"]),
        ({"model": {"vocabulary": 10**12}}, ["make the model smaller"]),
        ({"model": {"sequence_length": 10**12}}, ["optimizer states"]),  # of its positions
        ({"batch": {"micro_sequences": 10**9, "sequences": 10**9}}, ["batch.micro_sequences=1000000000 is too many"]),
        ({"batch": {"sequences": 10**9}}, ["batch.sequences=1000000000 is too many"]),
    ],
)
def test_what_is_too_large_is_named_with_what_would_fit(sections: dict[str, dict[str, int]], words: list[str]) -> None:
    with pytest.raises(ConfigError, match="does not fit in memory") as refused:
        check_memory(config(**sections), ONE_RANK, 4 * GIB)
    for word in words:
        assert word in str(refused.value)


def test_what_is_said_to_fit_does() -> None:
    def refusal(sequences: int) -> str:
        try:
            check_memory(config(batch={"sequences": sequences}), ONE_RANK, GIB)
        except ConfigError as error:
            return str(error)
        return ""

    fits = int(refusal(10**8).partition("too many: ")[2].split()[0])
    assert not refusal(fits * 9 // 10)
    assert refusal(fits * 11 // 10)


def test_what_lies_on_the_host_is_not_the_devices() -> None:
    run = config(batch={"sequences": 10**9}, parallel={"offload_optimizer": True, "zero_engine": "deepspeed"})
    check_bound(run, ONE_RANK, GIB, host=False)
    least = least_bytes(run, ONE_RANK)
    check_bound(run, ONE_RANK, least["weights"] + least["gradients"] + least["activations"], host=False)


def test_scoring_needs_weights_alone() -> None:
    run = config()
    check_bound(run, ONE_RANK, 4 * num_parameters(run.model), host=False, trains=False)


def test_modules_of_many_narrow_layers_count_on_a_host() -> None:
    run = config(model={"layers": 20_000, "hidden": 32, "heads": 2})
    check_bound(run, ONE_RANK, 5 * GIB, host=False)
    with pytest.raises(ConfigError, match=r"modules 10\.4"):
        check_bound(run, ONE_RANK, 5 * GIB)


def _config(sizes: dict[str, object]) -> RunConfig:
    return config(model={"layers": 1, **sizes}, **({} if "family" not in sizes else {"objective": _objective(sizes)}))


def _objective(sizes: dict[str, object]) -> dict[str, str]:
    return {"name": "span_corruption" if sizes["family"] == "t5" else "pairs"}
