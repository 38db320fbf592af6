"""A new encoder in front of BART's: beside transformers, the same run on any ranks, and what stays as it was."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.checkpoint import store
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.model_spec.modules import parameter_specs
from tests.helpers.breadth import only
from tests.helpers.families import family_config, train_family
from tests.helpers.hf import randomise
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import LENGTH, build_engine, save, whole_state

SOURCE = {"layers": 2, "vocabulary": 150}
STEPS = 3
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"tensor": 2},
    "tp2sp": {"tensor": 2, "sequence": True},
    "tp2spfull": {"tensor": 2, "sequence": True, "recompute": "full"},
    "cp2": {"context": 2},
    "pp2": {"pipeline": 2},
    "pp2vp2": {"pipeline": 2, "virtual": 2},
    "pp2full": {"pipeline": 2, "recompute": "full"},
    "dp2": {"zero": 0},
    "dp2zero1": {"zero": 1},
    "dp2deepspeed1": {"zero": 1, "zero_engine": "deepspeed"},
    "dp2zero2": {"zero": 2, "zero_engine": "deepspeed"},
    "dp2zero3": {"zero": 3, "zero_engine": "deepspeed"},
    "dp2zero3full": {"zero": 3, "zero_engine": "deepspeed", "recompute": "full"},
}
TRAINED = {
    "embedding.encoder.position_embeddings.weight",
    "embedding.decoder.position_embeddings.weight",
    "encoder.layers.0.self_attention.linear_qkv.weight",
}
"""what the first stage trains beside the source encoder"""


def _config(train: str, parallel: dict[str, Any], model: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    return family_config(
        "bart",
        objective={"name": "text_to_text"},
        model={"source_encoder": SOURCE, "target_length": LENGTH, "dropout": 0.1, **(model or {})},
        finetune={"train": train},
        parallel=parallel,
        batch={"micro_sequences": 2},
        **sections,
    )


def _trained(train: str, layout: dict[str, Any], precision: str) -> tuple[Any, ...]:
    """(losses and gradient norms of some steps, state before and after them)"""
    engine = build_engine(_config(train, layout, precision=precision))
    before = whole_state(engine)
    return train_family(engine, range(1, STEPS + 1)), before, whole_state(engine)


@pytest.mark.parametrize(
    ("train", "precision", "layout"),
    only(
        [("source_encoder", "fp32", "tp2sp")],
        [
            (train, precision, layout)
            for train in ("source_encoder", "all")
            for precision in ("fp32", "bf16")
            for layout in LAYOUTS
            if precision == "fp32" or layout in ("tp2sp", "pp2", "dp2zero1", "dp2zero3")
        ],
    ),
)
def test_a_stage_is_trained_alike_on_any_ranks(train: str, precision: str, layout: str) -> None:
    steps, before, after = run_ranks(1, _trained, train, {}, precision)[0]
    specs = [spec for spec in parameter_specs(_config(train, {}).model) if spec.alias_of is None]
    new = {spec.name for spec in specs if spec.name.startswith("source_encoder.")}
    trained = new | TRAINED if train == "source_encoder" else {spec.name for spec in specs}
    assert new
    tolerance = 2e-5 if precision == "fp32" else 2e-2
    for other_steps, other_before, other_after in run_ranks(2, _trained, train, LAYOUTS[layout], precision):
        assert np.allclose(other_steps, steps, rtol=tolerance)
        assert other_after.keys() == after.keys()
        assert {name.partition("/")[2] for name in other_after if not name.startswith("model/")} <= trained
        for spec in specs:
            name = f"model/{spec.name}"
            assert np.array_equal(other_before[name], before[name]), name
            if spec.name in trained:
                assert np.abs(after[name] - before[name]).max() > 0, name
                assert np.allclose(other_after[name], after[name], atol=20 * tolerance), name
            else:
                assert np.array_equal(other_after[name], before[name]), name


def _saved_and_resumed(directory: Path, train: str, layout: dict[str, Any], saves: bool) -> Any:
    engine = build_engine(_config(train, layout))
    if saves:
        train_family(engine, range(1, 3))
        save(directory, engine, 2)
    else:
        store.load(directory / "step-00000002", engine.state())
        engine.state_loaded(2)
    return train_family(engine, range(3, 5))


@pytest.mark.slow
@pytest.mark.parametrize("train", ["source_encoder", "all"])
def test_a_run_moves_between_layouts(train: str, tmp_path: Path) -> None:
    steps = run_ranks(2, _saved_and_resumed, tmp_path, train, LAYOUTS["tp2sp"], True)[0]
    for layout in ("pp2", "cp2", "dp2zero1", "dp2zero3"):
        if train == "source_encoder" or layout != "cp2":
            for resumed in run_ranks(2, _saved_and_resumed, tmp_path, train, LAYOUTS[layout], False):
                assert np.allclose(resumed, steps, rtol=2e-5)


def _beside_transformers(scale: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], float, float]:
    """(our gradients, theirs, our loss, theirs) of one batch. Theirs: a BART that is called with `inputs_embeds`, which
    are the last hidden states of another BART's encoder, which reads the source's tokens."""
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    from pretrain.interop.hf.families.bart import fields, links
    from tests.multirank.test_hf_heads import SPECIALS

    config = _config("all", {}, {"dropout": 0.0, "embedding_scale": scale}, optimizer={"clip_norm": 0.0})
    engine = build_engine(config)
    randomise(engine)
    model, state = config.model, engine.state()
    shape = {**fields(model, SPECIALS), "scale_embedding": scale, "pad_token_id": None}  # whose row has no gradient
    source_shape = {**shape, "encoder_layers": SOURCE["layers"], "vocab_size": SOURCE["vocabulary"]}
    bart = BartForConditionalGeneration(BartConfig(**shape)).eval()
    source = BartForConditionalGeneration(BartConfig(**source_shape)).eval()
    of_source = model.source_model
    named = [(bart, list(links(model)), ""), (source, list(links(of_source)), "source_encoder.")]
    pairs = []
    for hf_model, of_model, prefix in named:
        weights: dict[str, Any] = {}
        for link in of_model:
            ours = [prefix + name for name in link.mcore_names]
            if prefix:
                ours = [name.replace("source_encoder.encoder.", "source_encoder.") for name in ours]
            if all(f"model/{name}" in state for name in ours):
                pairs.append((hf_model, link, ours))
                values = [state[f"model/{name}"].pieces[0].value.clone() for name in ours]
                weights |= dict(zip(link.hf_names, link.out(*values), strict=True))
        hf_model.load_state_dict(weights, strict=False)
    assert {name for _, _, ours in pairs for name in ours} == {name.partition("/")[2] for name in state}
    rows = SyntheticStream(config).batch(0, 4, 0, 1)
    tokens, seen = torch.from_numpy(rows.tokens), torch.from_numpy(rows.attention_mask).long()
    read = source.model.encoder(input_ids=tokens, attention_mask=seen).last_hidden_state
    logits = bart(
        inputs_embeds=read, attention_mask=seen, decoder_input_ids=torch.from_numpy(rows.decoder_tokens)
    ).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(rows.labels).flatten())
    loss.backward()
    engine.keeps_gradients = True
    result = engine.train_step(rows, 0.0, 1)
    parts = engine.gradients()
    ours_by_name, theirs_by_name = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for hf_model, link, (name,) in pairs:
        parameters = dict(hf_model.named_parameters(remove_duplicate=False))
        gradients = link.out(parts[f"gradient/{name}"].pieces[0].value)
        for hf_name, gradient in zip(link.hf_names, gradients, strict=True):
            expected = parameters[hf_name].grad
            ours_by_name[f"{name} {hf_name}"] = gradient.clone().numpy()
            theirs_by_name[f"{name} {hf_name}"] = np.zeros(gradient.shape) if expected is None else expected.numpy()
    return ours_by_name, theirs_by_name, result.loss_sum / result.token_count, loss.item()


@pytest.mark.parametrize("scale", only([True], [True, False]))
def test_it_takes_the_place_of_token_embeddings_as_in_transformers(scale: bool) -> None:
    """With a scale of token embeddings, what takes their place is not scaled: as `inputs_embeds`."""
    ours, theirs, our_loss, their_loss = run_ranks(1, _beside_transformers, scale)[0]
    assert abs(our_loss - their_loss) < 1e-5
    assert any(name.startswith("source_encoder.") for name in ours)
    for name, gradient in ours.items():
        assert np.abs(gradient - theirs[name]).max() < 1e-5 * max(1.0, np.abs(theirs[name]).max()), name
