"""Layers that are one set of weights, on all stages: counted once by every sharding and update rule, and trained as on
one rank."""

from typing import Any

import numpy as np
import pytest

from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameters import chunk_parameters
from pretrain.random.dropout import Dropout
from tests.helpers.breadth import only
from tests.helpers.families import FAMILIES, family_config, train_family
from tests.helpers.hf import randomise
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import ROWS, build_engine, tiny_config, whole_state

STEPS = 4
TOLERANCE = 1e-5
LAMB: dict[str, Any] = {"optimizer": {"name": "lamb", "learning_rate": 3e-2, "eps": 1e-6}}
ADAFACTOR: dict[str, Any] = {"optimizer": {"name": "adafactor", "learning_rate": 3e-2}}
TWO: dict[str, Any] = {"pipeline": 2}
DEEPSPEED = {"zero_engine": "deepspeed"}
# Of each: the family, its config's sections, and layouts of four ranks.
CASES: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "lamb": ("albert", LAMB, [TWO | {"zero": 1}]),
    "lamb, more": (
        "albert", LAMB,
        [{"pipeline": 4}, TWO | {"tensor": 2, "sequence": True}, *(TWO | {"zero": n, **DEEPSPEED} for n in (1, 2, 3))],
    ),
    "adafactor": ("albert", ADAFACTOR, [TWO | {"zero": 1}, {"pipeline": 4}, TWO | {"zero": 3, **DEEPSPEED}]),
    "adamw": ("albert", {}, [TWO | {"zero": n, **DEEPSPEED} for n in (1, 2)]),
    "overlap": ("albert", {}, [{"overlap": True, "zero": 1}, {"overlap": True, "zero": 3, **DEEPSPEED}]),
    "recomputed": (
        "albert", {},
        [
            TWO | {"recompute": "full"}, {"zero": 1, **DEEPSPEED, "recompute": "full"},
            TWO | {"recompute": "selective", "zero": 3, **DEEPSPEED},
        ],
    ),
    "dropout": (
        "albert", {"model": {"dropout": 0.1, "attention_dropout": 0.1}},
        [TWO | {"tensor": 2, "sequence": True}, {"recompute": "full"}, {"context": 2, "tensor": 2}],
    ),
    "tied stacks": (
        "t5", {"model": {"tie_encoder_decoder": True, "dropout": 0.1, "activation": "gelu"}},
        [
            TWO | {"zero": 1},
            {"tensor": 2, "sequence": True, "zero": 1}, {"tensor": 2, "context": 2, "recompute": "full"},
            *({"zero": n, **DEEPSPEED} for n in (2, 3)),
        ],
    ),
    "a decoder": ("llama", {"model": {"shared_layers": True}}, [TWO | {"zero": 1}, TWO | {"zero": 3, **DEEPSPEED}]),
}  # fmt: skip


def _config(family: str, parallel: dict[str, Any], sections: dict[str, Any]) -> RunConfig:
    if "optimizer" not in sections:
        return family_config(family, parallel=parallel, **sections)
    return tiny_config(**FAMILIES[family] | sections, parallel=parallel)


def _trained(family: str, parallels: list[dict[str, Any]], sections: dict[str, Any]) -> list[Any]:
    """Losses and gradient norms of each layout, and the full state after the last step."""
    found = []
    for parallel in parallels:
        engine = build_engine(_config(family, parallel, sections))
        found.append((train_family(engine, range(1, STEPS + 1)), whole_state(engine)))
        meet_again()
    return found


@pytest.mark.parametrize("case", only(["lamb"], CASES))
def test_layers_that_are_one_train_as_on_one_rank(case: str) -> None:
    family, sections, layouts = CASES[case]
    (expected, state), *_ = run_ranks(1, _trained, family, [{}], sections)[0]
    assert np.ptp(np.array(expected)[:, 0]) > 1e-3, "weights change"
    for curve, other in run_ranks(4, _trained, family, layouts, sections)[0]:
        assert np.abs(np.array(curve) - np.array(expected)).max() <= TOLERANCE
        assert other.keys() == state.keys()
        assert not any(_is_alias(family, sections, name) for name in other)
        for name in (name for name in state if name.startswith("model/")):
            assert np.abs(other[name] - state[name]).max() <= 100 * TOLERANCE, name


def _is_alias(family: str, sections: dict[str, Any], name: str) -> bool:
    originals = {spec.name for spec in parameter_specs(_config(family, {}, sections).model) if spec.alias_of is None}
    return name.startswith("model/") and name.removeprefix("model/") not in originals


def _tied_and_apart() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], float, float]:
    """Gradients and losses of a tied T5, and of one whose decoder has copies of the encoder's weights."""
    found, weights, losses = [], {}, []
    for tied in (True, False):
        config = family_config("t5", model={"tie_encoder_decoder": tied}, optimizer={"clip_norm": 0.0})
        engine = build_engine(config)
        randomise(engine)
        for name, part in engine.state().items():
            if name.startswith("model/"):
                source = name if tied else _original(name, weights)
                weights.setdefault(source, part.pieces[0].value.clone())
                part.pieces[0].value.copy_(weights[source])
        engine.keeps_gradients = True
        result = engine.train_step(SyntheticStream(config).batch(0, ROWS, 0, 1), 0.0, 1)
        losses.append(result.loss_sum / result.token_count)
        found.append({name: part.pieces[0].value.float().numpy().copy() for name, part in engine.gradients().items()})
        meet_again()
    return found[0], found[1], losses[0], losses[1]


def _original(name: str, weights: dict[str, Any]) -> str:
    """The name of the tied model's parameter that this one of the other model is a copy of."""
    return name if name in weights else name.replace("decoder.layers", "encoder.layers")


def test_a_tied_layer_s_gradient_is_the_sum_of_both_uses() -> None:
    tied, apart, our_loss, their_loss = run_ranks(1, _tied_and_apart)[0]
    assert our_loss == pytest.approx(their_loss, abs=1e-6)
    shared = [name for name in apart if name not in tied]
    assert len(shared) == 2 * 6, "four matrices and two norms of each layer, but nothing of cross-attention"
    for name, gradient in tied.items():
        expected = apart[name].copy()
        other = name.replace("encoder.layers", "decoder.layers")
        if other in shared:
            expected += apart[other]
        assert np.abs(gradient - expected).max() <= 1e-4 * np.abs(expected).max() + 1e-7, name


def test_tied_stacks_on_some_stages_of_a_pipeline_are_refused() -> None:
    config = family_config("t5", model={"tie_encoder_decoder": True}, parallel={"pipeline": 4})
    with pytest.raises(ConfigError, match=r"is shared by 2 pipeline chunks on 4 stages.*: set parallel\.pipeline=1"):
        chunk_parameters(config.model, plan_layout(config, 4))


@pytest.mark.slow
def test_half_precision_departs_by_its_rounding() -> None:
    sections = {"precision": "bf16"}
    (expected, _), *_ = run_ranks(1, _trained, "albert", [{}], sections)[0]
    layouts = [TWO | {"zero": 1}, TWO | {"tensor": 2, "sequence": True}, TWO | {"zero": 3, **DEEPSPEED}]
    for curve, _ in run_ranks(4, _trained, "albert", layouts, sections)[0]:
        assert np.abs(np.array(curve) - np.array(expected)).max() <= 0.05


def _sites(family: str) -> list[int]:
    (chunk,) = build_engine(family_config(family, model={"dropout": 0.1, "attention_dropout": 0.1})).bare
    return [module.site for module in chunk.modules() if isinstance(module, Dropout)]


def test_each_use_of_a_layer_drops_elements_of_its_own() -> None:
    shared, apart = (run_ranks(1, _sites, family)[0] for family in ("albert", "bert"))
    assert len(set(shared)) == len(shared) == len(apart)
