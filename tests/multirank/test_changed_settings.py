"""Settings of the model that change during a run: a step has those that it is given, whatever the engine was built
with."""

from typing import Any

import numpy as np
import pytest

from pretrain.config.run_config import RunConfig
from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, whole_state

BEFORE, AFTER = (0.3, 0.001), (0.1, 0.0)
LAYOUTS = [{"tensor": 2, "sequence": True}, {"pipeline": 2}, {"expert": 2, "zero": 2, "zero_engine": "deepspeed"}]


def _config(weight: float, rate: float, parallel: dict[str, Any]) -> RunConfig:
    config = family_config("biased_experts", parallel=parallel)
    tree = config.model_dump(mode="json")
    tree["model"]["mtp"] = {"num_layers": 1, "loss_scaling_factor": weight}
    tree["model"]["experts"]["bias_rate"] = rate
    return RunConfig.model_validate(tree)


def _runs(parallel: dict[str, Any], built: list[tuple[float, float]]) -> list[Any]:
    """Builds an engine for each of the settings and returns its losses and norms of two steps before the change and two
    after it, and its state at the change and at the end."""
    found = []
    for settings in built:
        engine = build_engine(_config(*settings, parallel))
        engine.use_settings(_config(*BEFORE, parallel))
        curve = train_family(engine, range(1, 3))
        middle = whole_state(engine)
        engine.use_settings(_config(*AFTER, parallel))
        curve += train_family(engine, range(3, 5))
        found.append((curve, middle, whole_state(engine)))
        meet_again()
    return found


def test_a_step_has_the_settings_that_it_is_given() -> None:
    """The bits do not depend on what the engine was built with; biases stay after the change, and other weights of
    further tokens are other steps."""
    (one, other) = run_ranks(1, _runs, {}, [BEFORE, AFTER])[0]
    assert one[0] == other[0]
    biases = [name for name in one[1] if name.endswith(".router.bias")]
    assert biases
    for name, value in one[2].items():
        assert np.array_equal(other[2][name], value), name
        if name in biases:
            assert np.array_equal(one[1][name], value), name
            assert value.any(), name


def _loss_of(weight: float, parallel: dict[str, Any]) -> Any:
    engine = build_engine(_config(*BEFORE, parallel))
    engine.use_settings(_config(weight, 0.0, parallel))
    return train_family(engine, range(1, 2))[0]


@pytest.mark.parametrize("layouts", [[], slow(LAYOUTS)], ids=["one rank", "layouts"])
def test_losses_and_gradients_follow_the_weight(layouts: list[dict[str, Any]]) -> None:
    without, tenth, more = (np.array(run_ranks(1, _loss_of, weight, {})[0]) for weight in (0.0, 0.1, 0.3))
    assert abs((more - without)[0] - 3 * (tenth - without)[0]) <= 1e-5 < (tenth - without)[0]
    assert abs(more[1] - tenth[1]) > 1e-4
    for parallel in layouts:
        assert np.abs(np.array(run_ranks(2, _loss_of, 0.1, parallel)[0]) - tenth).max() <= 1e-5
