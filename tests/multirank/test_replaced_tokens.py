"""ELECTRA's step of two passes: on any layout and sharding its loss and every gradient are those of one rank, samples
included. `tests/classics/electra` compares them with transformers'."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretrain.checkpoint.replaced_head import replaced_head
from pretrain.config.run_config import RunConfig
from pretrain.config.task_head import TaskHeadShape
from pretrain.data.synthetic import SyntheticStream
from pretrain.errors import ConfigError
from pretrain.model_spec.generator import generator_specs
from pretrain.model_spec.parameters import num_parameters
from pretrain.objectives.replaced_tokens import ReplacedTokensLoss
from tests.helpers.breadth import slow
from tests.helpers.families import FAMILIES
from tests.helpers.hf import randomise, save, tokenizer_for, value
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import ROWS, build_engine, tiny_config, whole, whole_state

VOCABULARY = 30  # no multiple of 128: padding columns are never sampled; few, so that some samples are the originals
OF_TOKENIZER = 390  # as many ids as a real tokenizer needs
WEIGHT = 50.0
SCORED = 5  # rows: no multiple of a micro-batch
SHARED = "word_embeddings", "position_embeddings", "token_type_embeddings"
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2+sp-pp2": {"tensor": 2, "sequence": True, "pipeline": 2},
    "cp2-dp2-zero1": {"context": 2, "zero": 1},
    "pp2-vp2-dp2": {"pipeline": 2, "virtual": 2},
    "pp2-dp2-zero1": {"pipeline": 2, "zero": 1},
    "dp4-full": {"recompute": "full"},
    "dp4-overlap": {"zero": 1, "overlap": True, "bucket_parameters": 1},
    "pp2-overlap": {"pipeline": 2, "overlap": True, "bucket_parameters": 1},
    "pp2-vp2-overlap": {"pipeline": 2, "virtual": 2, "overlap": True},
    "zero2-overlap": {"zero": 2, "zero_engine": "deepspeed", "overlap": True},
    "zero3-overlap": {"zero": 3, "zero_engine": "deepspeed", "overlap": True},
    "zero3-offload": {"zero": 3, "zero_engine": "deepspeed", "offload_optimizer": True, "offload_parameters": True},
    "pp2-zero1-deepspeed": {"pipeline": 2, "zero": 1, "zero_engine": "deepspeed"},
    "tp2-pp2-zero2": {"tensor": 2, "pipeline": 2, "zero": 2, "zero_engine": "deepspeed"},
    "zero2": {"zero": 2, "zero_engine": "deepspeed"},
    "zero3": {"zero": 3, "zero_engine": "deepspeed"},
    "tp2+sp-zero3": {"tensor": 2, "sequence": True, "zero": 3, "zero_engine": "deepspeed"},
    "pp2-zero3": {"pipeline": 2, "zero": 3, "zero_engine": "deepspeed"},
}


def replaced_config(parallel: dict[str, Any], vocabulary: int = VOCABULARY, **sections: Any) -> RunConfig:
    """A model of four layers, and its generator of four narrower ones."""
    model = FAMILIES["electra"]["model"] | {"vocabulary": vocabulary}
    return tiny_config(
        model=model,
        generator={"hidden": 32, "heads": 4, "ffn": 64},
        objective={"name": "replaced_tokens"},
        parallel=parallel,
        **sections,
    )


def step(parallel: dict[str, Any], config: Callable[..., RunConfig] = replaced_config, **sections: Any) -> Any:
    """What one step of `config` does on the layout of `parallel`, as a rank sees it."""
    engine = build_engine(config(parallel, **sections))
    randomise(engine)
    engine.keeps_gradients = True
    source = SyntheticStream(engine.config)
    batch = source.batch(0, ROWS, engine.data_rank, engine.data_world)
    for _ in range(2 if parallel.get("overlap") else 0):  # the first tells megatron-core when buckets are complete
        engine.train_step(batch, 0.0, 1)
    samples: list[np.ndarray] = []
    read = ReplacedTokensLoss.read_samples

    def noted(self: ReplacedTokensLoss, batch: Any, tokens_BL: torch.Tensor) -> Any:
        samples.append(tokens_BL.numpy().copy())
        return read(self, batch, tokens_BL)

    ReplacedTokensLoss.read_samples = noted  # type: ignore[method-assign]
    result = engine.train_step(batch, 1e-3, 1)
    ReplacedTokensLoss.read_samples = read  # type: ignore[method-assign]
    scored = engine.score(source.batch(ROWS, ROWS, 0, 1)[np.arange(SCORED)])
    coordinates = engine.data_rank, engine.groups.context_rank
    loss = result.loss_sum / result.token_count
    return {
        "loss": loss,
        "terms": dict(result.terms),
        "norm": result.grad_norm,
        "gradients": whole(engine.gradients()),
        "weights": whole_state(engine),
        "samples": (coordinates, np.concatenate(samples)),
        "scores": scored,
    }


def _weights(parallel: dict[str, Any], optimizer: dict[str, Any]) -> Any:
    return step(parallel, optimizer=optimizer)["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lamb", "adafactor"])
@pytest.mark.parametrize("zero", [{"zero": 1}, {"zero": 2, "zero_engine": "deepspeed"}])
def test_rules_of_full_parameters_know_the_table_that_another_stage_reads(name: str, zero: dict[str, Any]) -> None:
    optimizer = {"name": name, "learning_rate": 1e-2}
    expected = run_ranks(1, _weights, {}, optimizer)[0]
    for found in run_ranks(4, _weights, {"pipeline": 2} | zero, optimizer):
        for parameter, full in expected.items():
            assert np.abs(found[parameter] - full).max() <= 1e-4 * np.abs(full).max() + 1e-7, parameter


def _joined(results: list[Any]) -> np.ndarray:
    """The samples of the global batch, of the data and context ranks that have them."""
    parts = dict(result["samples"] for result in results)
    data, context = (1 + max(at[axis] for at in parts) for axis in (0, 1))
    return np.concatenate([np.concatenate([parts[d, c] for c in range(context)], axis=1) for d in range(data)])


def assert_the_step_of_one_rank(parallel: dict[str, Any], config: Callable[..., RunConfig] = replaced_config) -> None:
    """Four ranks make the same samples, losses, gradients and scores."""
    one = run_ranks(1, step, {}, config)
    expected = one[0]
    means = {name: value / count for name, (value, count) in expected["terms"].items()}
    assert list(means) == ["tokens", "replaced"]
    assert expected["loss"] == pytest.approx(means["tokens"] + WEIGHT * means["replaced"], rel=1e-6)
    found = run_ranks(4, step, parallel, config)
    assert (_joined(found) == _joined(one)).all(), "samples are the same"
    for other in found:
        assert other["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert other["norm"] == pytest.approx(expected["norm"], rel=1e-4)
        for name, (total, count) in other["terms"].items():
            assert (total, count) == (pytest.approx(expected["terms"][name][0], rel=1e-5), expected["terms"][name][1])
        for name, gradient in other["gradients"].items():
            full = expected["gradients"][name]
            assert np.abs(gradient - full).max() <= 1e-4 * np.abs(full).max() + 1e-6, name
        assert other["weights"].keys() == expected["weights"].keys()
        scores, alone = other["scores"], expected["scores"]
        assert np.abs(scores.log_probability - alone.log_probability).max() < 1e-4
        total, count = alone.terms["replaced"]
        assert scores.terms["replaced"] == (pytest.approx(total, rel=1e-4), count)


@pytest.mark.parametrize("layout", [name if name == "tp2+sp-pp2" else slow(name) for name in LAYOUTS])
def test_every_layout_makes_the_step_of_one_rank(layout: str) -> None:
    assert_the_step_of_one_rank(LAYOUTS[layout])


def _save(tokenizer: Path, directory: Path) -> None:
    config = replaced_config({"tensor": 2, "pipeline": 2}, OF_TOKENIZER)
    engine = build_engine(config)
    randomise(engine)
    save(engine, config, tokenizer, directory)


def _export(checkpoint: Path, exported: Path) -> Any:
    """For each model: how far transformers' answers are, its class and its number of parameters; what is refused."""
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

    from pretrain.checkpoint.state import scoring_config
    from pretrain.evaluate.opening import build_empty, build_scorer
    from pretrain.interop.hf.export import export
    from pretrain.interop.hf.imports import import_hf, read_config

    found: dict[str, Any] = {}
    for model, kind in (("discriminator", AutoModelForPreTraining), ("generator", AutoModelForMaskedLM)):
        config = scoring_config(checkpoint, [], True, model)
        agreement = export(checkpoint, config, exported / model, partial(build_scorer, config, checkpoint))
        theirs = kind.from_pretrained(exported / model)
        found[model] = agreement.difference, type(theirs).__name__, theirs.num_parameters()
    with pytest.raises(ConfigError) as error:
        scoring_config(checkpoint, [], True)
    imported, warnings = read_config(exported / "discriminator", exported / "run"), []
    engine = build_empty(imported)
    import_hf(exported / "discriminator", imported, engine, warnings.append)
    found["imported"] = imported.objective.name, whole_state(engine), warnings
    return found, str(error.value)


def test_both_models_are_exported(tmp_path: Path) -> None:
    run_ranks(4, _save, tokenizer_for("bert", tmp_path), tmp_path / "checkpoints")
    found, refused = run_ranks(1, _export, tmp_path / "checkpoints" / "step-00000000", tmp_path)[0]
    assert "choose one with --model discriminator or --model generator" in refused
    objective, weights, warnings = found.pop("imported")
    assert objective == "masked"
    assert any("generator_predictions" in warning for warning in warnings), "which it has no weights of"
    name = "encoder.layers.1.mlp.linear_fc1.weight"
    assert (weights[f"model/{name}"] == value(name, weights[f"model/{name}"].shape)).all()
    assert [name for _, name, _ in found.values()] == ["ElectraForPreTraining", "ElectraForMaskedLM"]
    assert all(difference < 1e-4 for difference, _, _ in found.values())
    config = replaced_config({}, OF_TOKENIZER)
    assert config.generator_model is not None
    expected = [num_parameters(model, padded=False) for model in (config.model, config.generator_model)]
    assert [count for _, _, count in found.values()] == expected


def test_a_fine_tuned_model_starts_from_the_discriminator(tmp_path: Path) -> None:
    run_ranks(4, _save, tokenizer_for("bert", tmp_path), tmp_path / "checkpoints")
    checkpoint = tmp_path / "checkpoints" / "step-00000000"
    config = replaced_config({}, OF_TOKENIZER)
    head = TaskHeadShape(kind="sequence", outputs=3)
    fresh, unread = replaced_head(checkpoint, config.model.model_copy(update={"task_head": head}))
    leaves = "weight", "bias"
    assert fresh == {f"model/head.{name}.{leaf}" for name in ("pooler", "classifier") for leaf in leaves}
    of_head = {f"model/head.{name}.{leaf}" for name in ("dense", "detector") for leaf in leaves}
    assert unread == of_head | {f"model/{spec.name}" for spec in generator_specs(config)}
