"""Runs that train some of their parameters: the same run on any ranks, and frozen parameters as they were."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.batch import Rows
from pretrain.checkpoint import store
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.errors import ConfigError
from pretrain.model_spec.modules import parameter_specs
from tests.helpers.breadth import only, slow
from tests.helpers.families import family_config, train_family
from tests.helpers.hf import randomise
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import LENGTH, ROWS, build_engine, save, whole, whole_state

CLASSES = {"name": "classification", "labels": ["a", "b", "c"]}
LORA = {"rank": 4, "alpha": 6}
SETS: dict[str, dict[str, Any]] = {
    "head": {"train": "head"},
    "top": {"train": "top", "layers": 1},
    "lora": {"lora": LORA},
    "lora-dropout": {"lora": {**LORA, "dropout": 0.3}},
    "adapters": {"adapters": {"size": 8}},
    "rates": {"rate_decay": 0.7},
    "unfrozen": {"unfreeze_steps": 1, "rate_decay": 0.7},
}
STEPS = 3
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2dp2": {"tensor": 2, "zero": 0},
    "tp2cp2": {"tensor": 2, "sequence": True, "context": 2},
    "pp2dp2": {"pipeline": 2, "zero": 1},
    "pp2dp2zero0": {"pipeline": 2, "zero": 0},
    "pp2dp2full": {"pipeline": 2, "zero": 1, "recompute": "full"},
    "dp4zero1": {"zero": 1, "zero_engine": "deepspeed"},
    "dp4zero2": {"zero": 2, "zero_engine": "deepspeed"},
    "dp4zero3": {"zero": 3, "zero_engine": "deepspeed"},
    "dp4zero3full": {"zero": 3, "zero_engine": "deepspeed", "recompute": "full"},
}
SHARED: dict[str, dict[str, Any]] = {
    "tp2ep2": {"tensor": 2, "sequence": True, "expert": 2},
    "tp2ep2zero0": {"tensor": 2, "expert": 2, "zero": 0},
    "cp2ep2": {"context": 2, "expert": 2},
    "ep4full": {"expert": 4, "recompute": "full"},
    "ep2pp2": {"expert": 2, "pipeline": 2},
    "ep2zero2": {"expert": 2, "zero": 2, "zero_engine": "deepspeed"},
    "ep4etp1": {"tensor": 2, "sequence": True, "expert": 4, "expert_tensor": 1},
    "ep2etp1zero0": {"tensor": 2, "expert": 2, "expert_tensor": 1, "zero": 0},
    "etp1zero2": {"tensor": 2, "expert_tensor": 1, "zero": 2, "zero_engine": "deepspeed"},
}


def set_config(family: str, sections: dict[str, Any]) -> RunConfig:
    config = family_config(family, model={"dropout": 0.1}, batch={"micro_sequences": 2})
    tree = config.model_dump(mode="json")
    for name, section in sections.items():
        merges = isinstance(section, dict) and name not in ("objective", "optimizer")
        tree[name] = {**tree[name], **section} if merges else section
    tree["model"]["target_length"] = tree["model"]["target_length"] and LENGTH
    return RunConfig.model_validate(tree)


def _trained(family: str, sections: dict[str, Any], layout: dict[str, Any]) -> tuple[Any, ...]:
    """(losses and gradient norms of some steps, state before and after them)"""
    engine = build_engine(set_config(family, {**sections, "parallel": layout}))
    before = whole_state(engine)
    steps = train_family(engine, range(1, STEPS + 1))
    return steps, before, whole_state(engine)


def _compare(family: str, sections: dict[str, Any], layout: dict[str, Any], tolerance: float = 2e-5) -> None:
    steps, before, after = run_ranks(1, _trained, family, sections, {})[0]
    specs = [spec for spec in parameter_specs(set_config(family, sections).model) if spec.alias_of is None]
    trained = {spec.name for spec in specs if spec.trained}
    updated = {spec.name for spec in specs if spec.trained and spec.frozen_updates < STEPS}
    frozen = {spec.name for spec in specs} - updated
    assert updated
    for other_steps, other_before, other_after in run_ranks(4, _trained, family, sections, layout):
        assert np.allclose(other_steps, steps, rtol=tolerance)
        assert other_after.keys() == after.keys()
        assert {name.partition("/")[2] for name in other_after if not name.startswith(("model/", "router/"))} <= trained
        for name in frozen:
            assert np.array_equal(other_after[f"model/{name}"], before[f"model/{name}"]), name
            assert np.array_equal(other_before[f"model/{name}"], before[f"model/{name}"]), name
        for name in other_after:
            kind, _, parameter = name.partition("/")
            assert kind in ("model", "router") or parameter in updated or not np.any(other_after[name]), name
        for name in updated:
            assert np.abs(after[f"model/{name}"] - before[f"model/{name}"]).max() > 0, name
            assert np.allclose(other_after[f"model/{name}"], after[f"model/{name}"], atol=20 * tolerance), name


_QUICK = [
    ("bert", "head", "pp2dp2zero0"),
    ("bert", "lora-dropout", "tp2cp2"),
    ("bart", "adapters", "dp4zero3"),
]
_PAIRS = [
    ("bert", "head"),
    ("llama", "top"),
    ("bart", "top"),
    ("bert", "lora"),
    ("bart", "lora"),
    ("bert", "lora-dropout"),
    ("bart", "lora-dropout"),
    ("bert", "adapters"),
    ("bart", "adapters"),
    ("gemma", "adapters"),
    ("llama", "rates"),
    ("llama", "unfrozen"),
    ("bart", "unfrozen"),
]


@pytest.mark.parametrize(
    ("family", "trained", "layout"), only(_QUICK, [(*pair, layout) for pair in _PAIRS for layout in LAYOUTS], one_in=2)
)
def test_a_set_is_trained_alike_on_any_ranks(family: str, trained: str, layout: str) -> None:
    sections = {"objective": CLASSES, "finetune": SETS[trained]}
    _compare(family, sections, LAYOUTS[layout])


@pytest.mark.parametrize(
    ("family", "layout"),
    only(
        [("shared_experts", "tp2ep2")],
        [(family, layout) for family in ("shared_experts", "biased_experts") for layout in LAYOUTS | SHARED],
    ),
)
def test_updates_of_experts_are_trained_alike_on_any_ranks(family: str, layout: str) -> None:
    sections = {"objective": CLASSES, "finetune": SETS["lora"]}
    _compare(family, sections, (LAYOUTS | SHARED)[layout])


def _gradients_of_experts(parallel: dict[str, Any], fault: str = "") -> dict[str, np.ndarray]:
    """Makes all updates random, and returns the gradients of a step of one batch."""
    from pretrain.models import lora

    if fault == "each tensor rank hands on the gradient of the input":
        lora._GradientOfFirstRank.backward = staticmethod(lambda ctx, gradient: (gradient, None))
    elif fault == "each tensor rank adds the update":
        lora._OutputOfFirstRank.forward = staticmethod(lambda ctx, x, is_first: x.view_as(x))
    elif fault == "gradients of features are not summed":
        lora.copy_to_tensor_model_parallel_region = lambda x: x
    elif fault == "features are not summed":
        lora.reduce_from_tensor_model_parallel_region = lambda x: x
    engine = build_engine(set_config("shared_experts", {"finetune": SETS["lora"], "parallel": parallel}))
    randomise(engine)
    engine.keeps_gradients = True
    batch = SyntheticStream(engine.config).batch(0, ROWS, engine.data_rank, engine.data_world)
    engine.train_step(batch, 0.0, 1)
    return whole(engine.gradients())


def _furthest(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    assert found.keys() == expected.keys()
    return max(float(np.abs(found[name] - x).max() / np.abs(x).max()) for name, x in expected.items())


FAULTS = [
    "each tensor rank hands on the gradient of the input",
    "each tensor rank adds the update",
    "gradients of features are not summed",
    "features are not summed",
]


@pytest.mark.parametrize("parallel", [{"tensor": 2}, slow({"tensor": 2, "sequence": True})], ids=["tp2", "sequence"])
def test_tensor_ranks_share_the_updates_of_experts(parallel: dict[str, Any]) -> None:
    expected = run_ranks(1, _gradients_of_experts, {})[0]
    assert sum(".experts.linear_fc" in name and "lora" in name for name in expected) == 3 * 4
    for found in run_ranks(2, _gradients_of_experts, parallel):
        assert _furthest(found, expected) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_tensor_ranks_would_be_seen(fault: str) -> None:
    expected = run_ranks(1, _gradients_of_experts, {})[0]
    assert _furthest(run_ranks(2, _gradients_of_experts, {"tensor": 2}, fault)[0], expected) > 1e-3


CAUSAL: dict[str, dict[str, Any]] = {
    "gemma": {"finetune": {"train": "top", "layers": 2}},  # the output layer is the embedding, which is frozen
    "llama": {"finetune": {"train": "top", "layers": 1}},
    "mistral": {
        "finetune": {"lora": {**LORA, "targets": ["fc2", "qkv"]}},
        "optimizer": {"name": "lamb", "learning_rate": 1e-3, "eps": 1e-6},
    },
    "albert": {"finetune": {"lora": LORA}, "optimizer": {"name": "adafactor", "learning_rate": 1e-3}},
    "roformer": {"finetune": SETS["unfrozen"], "optimizer": {"name": "adafactor", "learning_rate": 1e-3}},
    "qwen2": {"finetune": SETS["unfrozen"], "optimizer": {"name": "lamb", "learning_rate": 1e-3, "eps": 1e-6}},
    "qwen3": {"finetune": SETS["unfrozen"], "optimizer": {"name": "adagrad", "learning_rate": 1e-3}},
    "gemma2": {"finetune": SETS["unfrozen"], "optimizer": {"name": "adam", "learning_rate": 1e-3, "eps": 1e-6}},
    "t5": {"finetune": {"lora": {**LORA, "targets": ["cross_q", "cross_kv", "cross_projection"]}}},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "layout"),
    only(
        [("mistral", "tp2cp2"), ("roformer", "pp2dp2")],
        [(family, layout) for family in CAUSAL for layout in ("tp2cp2", "pp2dp2", "dp4zero3full")],
    ),
)
def test_pretraining_objectives_train_a_set_alike_on_any_ranks(family: str, layout: str) -> None:
    parallel = LAYOUTS[layout]
    if family == "albert":
        parallel = {**parallel, "recompute": "none"}  # docs/zero.md: not full with shared layers
    _compare(family, CAUSAL[family], parallel)


ENDS = {"lora": {**LORA, "modules_to_save": ["embedding", "head"], "embedding_rate": 0.2}}
TP2PP2 = {"tensor": 2, "pipeline": 2}


@pytest.mark.parametrize(
    ("family", "layout"),
    only(
        [("gemma", "tp2pp2")],  # its ends are one matrix, on both stages
        product(["gemma", "llama", "bert", "t5"], ["tp2pp2", *LAYOUTS]),
        one_in=3,
    ),
)
def test_embedding_and_head_are_trained_beside_updates_alike_on_any_ranks(family: str, layout: str) -> None:
    _compare(family, {"finetune": ENDS}, (LAYOUTS | {"tp2pp2": TP2PP2})[layout])


@pytest.mark.parametrize(
    ("precision", "trained", "layout"),
    only(
        [("fp16", "lora", "pp2dp2")],
        product(
            ["bf16", "fp16"],
            ["head", "top", "lora", "adapters", "unfrozen"],
            ["tp2cp2", "pp2dp2", "dp4zero1", "dp4zero2", "dp4zero3"],
        ),
        one_in=3,
    ),
)
def test_half_precision_keeps_frozen_weights_to_the_bit(precision: str, trained: str, layout: str) -> None:
    sections = {"objective": CLASSES, "finetune": SETS[trained], "precision": precision}
    _compare("bert", sections, LAYOUTS[layout], tolerance=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "trained", "layout"),
    only(
        [("adafactor", "adapters", "tp2cp2")],
        product(
            ["lamb", "adafactor", "adagrad", "adam"],
            ["head", "top", "lora", "adapters"],
            ["tp2cp2", "pp2dp2", "dp4zero2", "dp4zero3"],
        ),
        one_in=3,
    ),
)
def test_every_optimizer_trains_a_set_alike_on_any_ranks(optimizer: str, trained: str, layout: str) -> None:
    # Adagrad's sum begins at 0.1: at a small rate, the first updates of LoRA's A are below the rounding of A.
    rule: dict[str, Any] = {"name": optimizer, "learning_rate": 0.1 if optimizer == "adagrad" else 1e-3}
    rule |= {"eps": 1e-6} if optimizer in ("lamb", "adam") else {}
    sections = {"objective": CLASSES, "finetune": SETS[trained], "optimizer": rule}
    _compare("bert", sections, LAYOUTS[layout])


def _saved_and_resumed(
    directory: Path, sections: dict[str, Any], layout: dict[str, Any], saves: bool, family: str = "bert"
) -> Any:
    engine = build_engine(set_config(family, {**sections, "parallel": layout}))
    if saves:
        train_family(engine, range(1, 3))
        save(directory, engine, 2)
    else:
        store.load(directory / "step-00000002", engine.state())
        engine.state_loaded(2)
    return train_family(engine, range(3, 5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "trained"),
    only(
        [("bf16", "unfrozen")],
        product(["fp32", "bf16"], ["lora", "adapters", "rates", "unfrozen"]),
    ),
)
def test_a_run_moves_between_layouts(precision: str, trained: str, tmp_path: Path) -> None:
    sections = {"objective": CLASSES, "finetune": SETS[trained], "precision": precision}
    steps = run_ranks(4, _saved_and_resumed, tmp_path, sections, LAYOUTS["tp2cp2"], True)[0]
    tolerance = 2e-5 if precision == "fp32" else 2e-2
    for layout in ("pp2dp2", "dp4zero1", "dp4zero3"):
        for resumed in run_ranks(4, _saved_and_resumed, tmp_path, sections, LAYOUTS[layout], False):
            assert np.allclose(resumed, steps, rtol=tolerance)


@pytest.mark.slow
def test_updates_of_experts_move_between_layouts(tmp_path: Path) -> None:
    sections, family = {"objective": CLASSES, "finetune": SETS["lora"]}, "biased_experts"
    steps = run_ranks(4, _saved_and_resumed, tmp_path, sections, SHARED["tp2ep2"], True, family)[0]
    for layout in (SHARED["ep4etp1"], SHARED["ep4full"], LAYOUTS["pp2dp2"], LAYOUTS["dp4zero3"]):
        for resumed in run_ranks(4, _saved_and_resumed, tmp_path, sections, layout, False, family):
            assert np.allclose(resumed, steps, rtol=2e-5)


def _moved(family: str, sections: dict[str, Any]) -> dict[str, np.ndarray]:
    """What one update takes from each weight."""
    engine = build_engine(set_config(family, sections))
    before = whole_state(engine)
    train_family(engine, range(1, 2))
    after = whole_state(engine)
    return {name.partition("/")[2]: before[name] - after[name] for name in before if name.partition("/")[0] == "model"}


OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "adamw", "weight_decay": 0.1},
    {"name": "lamb", "weight_decay": 0.1},
    {"name": "adafactor", "weight_decay": 0.1},
    {"name": "adagrad", "weight_decay": 0.1},
    {"name": "adam", "weight_decay": 0.0},
]


@pytest.mark.parametrize("optimizer", only(OPTIMIZERS[:3], OPTIMIZERS), ids=lambda optimizer: optimizer["name"])
def test_an_update_is_as_large_as_the_rate_of_its_layer(optimizer: dict[str, Any]) -> None:
    """Multipliers are ELECTRA's: 1 for the head, rate_decay^(L + 2 - l) for layer l of L, and for embeddings
    rate_decay^(L + 2)."""
    sections: dict[str, Any] = {"objective": CLASSES, "optimizer": {**optimizer, "learning_rate": 1e-2, "clip_norm": 0}}
    plain = run_ranks(1, _moved, "bert", sections)[0]
    decayed = run_ranks(1, _moved, "bert", {**sections, "finetune": {"rate_decay": 0.5}})[0]
    exponents = {"head.": 0, "embedding.": 6, **{f"encoder.layers.{layer}.": 5 - layer for layer in range(4)}}
    for name in plain:
        exponent = next(value for prefix, value in exponents.items() if name.startswith(prefix))
        scale = np.abs(plain[name]).max()
        assert scale > 0, name
        assert np.allclose(decayed[name], plain[name] * 0.5**exponent, atol=1.5e-7 + 2e-2 * scale * 0.5**exponent), name


def _unfrozen_beside_torch(rates: dict[str, float], joins: dict[str, int]) -> float:
    """The largest difference of any weight from that of torch's AdamW, which is given the same gradients of those that
    have joined, and none of the others."""
    sections = {"objective": CLASSES, "finetune": {"unfreeze_steps": 2, "rate_decay": 0.7}}
    engine = build_engine(set_config("bert", {**sections, "model": {"dropout": 0.0}}))
    engine.keeps_gradients = True
    settings, start = engine.config.optimizer, whole_state(engine)
    weights = {name: torch.nn.Parameter(torch.tensor(start[f"model/{name}"])) for name in rates}
    by_prefix = [
        {
            "params": [weight],
            "lr": settings.learning_rate * rates[name],
            "weight_decay": getattr(settings, "weight_decay") if weight.dim() > 1 else 0.0,  # noqa: B009
        }
        for name, weight in weights.items()
    ]
    betas = getattr(settings, "beta1"), getattr(settings, "beta2")  # noqa: B009
    adam = torch.optim.AdamW(by_prefix, betas=betas, eps=getattr(settings, "eps"))  # noqa: B009
    for step in range(1, 15):
        ((_, norm),) = train_family(engine, range(step, step + 1))
        gradients = whole(engine.gradients())
        for name, weight in weights.items():
            gradient = torch.tensor(gradients[f"gradient/{name}"])
            assert (step <= joins[name]) == (not gradient.any()), (name, step)
            weight.grad = gradient if step > joins[name] else None
        squares = sum(float(np.square(value.astype(np.float64)).sum()) for value in gradients.values())
        assert np.isclose(min(norm, settings.clip_norm), squares**0.5, rtol=1e-5)
        adam.step()
    found = whole_state(engine)
    return max(
        float(np.abs(found[f"model/{name}"] - weight.detach().numpy()).max()) for name, weight in weights.items()
    )


def test_layers_join_as_new_parameters_of_torch() -> None:
    sections = {"objective": CLASSES, "finetune": {"unfreeze_steps": 2, "rate_decay": 0.7}}
    names = [spec.name for spec in parameter_specs(set_config("bert", sections).model) if spec.alias_of is None]
    below = {"head.": 0, "embedding.": 5, **{f"encoder.layers.{layer}.": 4 - layer for layer in range(4)}}
    of = {name: next(value for prefix, value in below.items() if name.startswith(prefix)) for name in names}
    rates = {name: 0.7 ** (depth + 1) if depth else 1.0 for name, depth in of.items()}
    joins = {name: 2 * depth for name, depth in of.items()}
    assert run_ranks(1, _unfrozen_beside_torch, rates, joins)[0] < 1e-6


def _merged(family: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers before training, after it, and of the model without LoRA whose weights are W + alpha / rank B A."""
    sections: dict[str, Any] = {"objective": CLASSES, "finetune": SETS["lora"]}
    engine = build_engine(set_config(family, sections))
    rows = SyntheticStream(engine.config).batch(100, ROWS, 0, 1)[np.arange(4)]
    before = engine.score(rows).outputs
    train_family(engine, range(1, 4))
    state = whole_state(engine)
    meet_again()
    plain = build_engine(set_config(family, {"objective": CLASSES}), train=False)
    for name, part in plain.state().items():
        weight = state[name]
        if (a := f"{name.removesuffix('weight')}lora_a.weight") in state:
            weight = weight + LORA["alpha"] / LORA["rank"] * state[a.replace("lora_a", "lora_b")] @ state[a]
        for piece in part.pieces:
            inside = tuple(slice(o, o + n) for o, n in zip(piece.offset, piece.value.shape, strict=True))
            piece.value.copy_(torch.from_numpy(weight[inside]))
    return before, engine.score(rows).outputs, plain.score(rows).outputs


@pytest.mark.parametrize("family", [slow("bert"), "llama", "bart"])
def test_an_update_is_the_product_of_its_matrices(family: str) -> None:
    before, trained, merged = run_ranks(1, _merged, family)[0]
    assert np.abs(trained - before).max() > 1e-2
    assert np.allclose(trained, merged, atol=2e-5)


def _dropped(kind: str) -> tuple[Any, ...]:
    """(share of the input of A that is zero, largest error of the rest, largest error of the output beyond the frozen
    layer's own, and the same without training) of one linear layer, by the end of its name."""
    engine = build_engine(set_config("bert", {"objective": CLASSES, "finetune": SETS["lora-dropout"]}))
    chunk = engine.bare[0]
    linear = next(module for name, module in chunk.named_modules() if name.endswith(kind))
    torch.nn.init.normal_(linear.lora_b.weight)
    read: list[torch.Tensor] = []
    linear.lora_a.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0].detach()))
    x = torch.randn(LENGTH, 4, linear.lora_a.weight.shape[1])
    found: list[Any] = []
    with torch.no_grad():
        for trains in (True, False):
            linear.train(trains)
            out, (a, b) = linear(x)[0], (linear.lora_a.weight, linear.lora_b.weight)
            frozen = x @ linear.weight.T + (linear.bias if linear.bias is not None and linear(x)[1] is None else 0)
            expected = frozen + LORA["alpha"] / LORA["rank"] * read[0] @ a.T @ b.T
            zero = read[0] == 0
            kept = (read[0] - x / (0.7 if trains else 1))[~zero].abs().max()
            found += [zero.float().mean().item(), kept.item(), (out - expected).abs().max().item()]
            read.clear()
    return tuple(found)


@pytest.mark.parametrize("kind", ["linear_qkv", "linear_fc2"])
def test_dropout_is_of_the_input_of_the_update_alone_and_only_in_training(kind: str) -> None:
    share, kept, error, scored_share, scored_kept, scored_error = run_ranks(1, _dropped, kind)[0]
    assert abs(share - 0.3) < 0.03
    assert scored_share == 0
    assert max(kept, scored_kept, error, scored_error) < 1e-3


def test_dropout_of_an_update_changes_training() -> None:
    plain, dropped = (
        run_ranks(1, _trained, "bert", {"objective": CLASSES, "finetune": SETS[name]}, {})[0][0]
        for name in ("lora", "lora-dropout")
    )
    assert dropped[0][0] == pytest.approx(plain[0][0], rel=1e-6), "B starts at zero"
    assert dropped[2][0] != pytest.approx(plain[2][0], rel=1e-5)


@pytest.mark.slow
def test_a_resumed_run_unfreezes_to_the_bit(tmp_path: Path) -> None:
    sections = {"objective": CLASSES, "finetune": SETS["unfrozen"]}
    for layout in ("tp2dp2", "dp4zero2"):
        steps = run_ranks(4, _saved_and_resumed, tmp_path / layout, sections, LAYOUTS[layout], True)
        assert run_ranks(4, _saved_and_resumed, tmp_path / layout, sections, LAYOUTS[layout], False) == steps


def _answers_and_gradients() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray, Rows]:
    """State of a model with adapters that are far from the identity, its gradients for a batch, and its answers."""
    config = set_config("bert", {"objective": CLASSES, "finetune": SETS["adapters"], "model": {"dropout": 0.0}})
    engine = build_engine(config)
    for name, part in engine.state().items():
        for piece in part.pieces:
            if ".adapter." in name and name.startswith("model/"):
                piece.value.mul_(30).add_(0.01)
    engine.state_loaded(0)
    state, rows = whole_state(engine), SyntheticStream(config).batch(0, ROWS, 0, 1)
    answers = engine.score(rows).outputs
    assert answers is not None
    engine.keeps_gradients = True
    engine.train_step(rows, 1e-3, 1)
    return state, whole(engine.gradients()), answers, rows


def _houlsby(w: dict[str, torch.Tensor], rows: Rows) -> torch.Tensor:
    """[rows, 3] logits of a BERT with adapters, in plain torch: norm(x + adapter(sublayer(x))) (arXiv 1902.00751,
    figure 2)."""
    F = torch.nn.functional

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (64,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    def adapter(name: str, x: torch.Tensor) -> torch.Tensor:
        return x + linear(f"{name}.up", F.gelu(linear(f"{name}.down", x), approximate="tanh"))

    assert rows.attention_mask is not None
    assert rows.segments is not None
    seen = torch.tensor(rows.attention_mask)[:, None, None, :]
    x = w["embedding.word_embeddings.weight"][torch.tensor(rows.tokens)]
    x = (
        x
        + w["embedding.encoder.position_embeddings.weight"]
        + w["embedding.encoder.segment_embeddings.weight"][torch.tensor(rows.segments)]
    )
    x = norm("embedding.encoder.norm", x)
    for layer in range(4):
        name = f"encoder.layers.{layer}."
        q, k, v = linear(f"{name}self_attention.linear_qkv", x).unflatten(-1, (4, 3, 16)).transpose(1, 2).unbind(3)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
        out = linear(f"{name}self_attention.linear_proj", attended)
        x = norm(f"{name}self_attn_bda.norm", x + adapter(f"{name}self_attn_bda.adapter", out))
        out = linear(f"{name}mlp.linear_fc2", F.gelu(linear(f"{name}mlp.linear_fc1", x)))
        x = norm(f"{name}mlp_bda.norm", x + adapter(f"{name}mlp_bda.adapter", out))
    return linear("head.classifier", torch.tanh(linear("head.pooler", x[torch.tensor(rows.loss_mask) > 0])))


def test_adapters_are_those_of_the_paper() -> None:
    state, gradients, answers, rows = run_ranks(1, _answers_and_gradients)[0]
    weights = {
        name.removeprefix("model/"): torch.tensor(value) for name, value in state.items() if name.startswith("model/")
    }
    trained = {name.removeprefix("gradient/") for name in gradients}
    assert {name for name in weights if ".adapter." in name or "norm." in name or "head." in name} == trained
    for name in trained:
        weights[name].requires_grad_()
    counts = rows.loss_mask > 0
    logits = _houlsby(weights, rows)
    assert np.allclose(answers[counts], logits.detach().numpy(), atol=1e-4)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(rows.labels[counts]))
    loss.backward()
    norm = torch.stack([weights[name].grad.norm() for name in sorted(trained)]).norm()  # type: ignore[union-attr]
    for name in trained:
        of_weight = weights[name].grad
        assert of_weight is not None
        clipped = (of_weight / max(1.0, float(norm))).numpy()
        assert np.allclose(gradients[f"gradient/{name}"], clipped, atol=1e-5), name


def _refused(layout: dict[str, Any]) -> str:
    try:
        build_engine(set_config("bert", {"objective": CLASSES, "finetune": {"train": "head"}, "parallel": layout}))
    except ConfigError as error:
        return str(error)
    return ""


def test_deepspeed_refuses_a_stage_without_trained_parameters() -> None:
    layout = {"pipeline": 2, "zero": 2, "zero_engine": "deepspeed"}
    for problem in run_ranks(2, _refused, layout):
        assert "finetune.train=head trains nothing on pipeline stage 0" in problem
