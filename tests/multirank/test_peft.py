"""Low-rank updates in PEFT's format: PEFT answers, learns and is imported alike."""

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError, RunError
from pretrain.interop.peft.config import CONFIG
from pretrain.interop.peft.export import BASE, shortest_suffixes
from pretrain.interop.peft.weights import WEIGHTS
from tests.helpers.breadth import only
from tests.helpers.families import train_family
from tests.helpers.hf import randomise, read_json, save, tokenizer_for, value
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, whole_state
from tests.multirank.test_hf_lora import ALPHA, LAYER, LAYOUT, RANK, VOCABULARY, lora_config

needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed: pip install -e .[dev]")


# What runs on ranks. transformers takes seconds to import: only where it is needed.


def _write(family: str, classifies: bool, parallel: dict[str, Any], tokenizer: Path, directory: Path) -> None:
    config = lora_config(family, classifies, parallel)
    engine = build_engine(config)
    randomise(engine)
    save(engine, config, tokenizer, directory)


def _export(family: str, classifies: bool, checkpoint: Path, adapter: Path, base: str | None = None) -> float | str:
    from pretrain.evaluate.opening import build_scorer
    from pretrain.interop.peft.export import export_adapter

    config = lora_config(family, classifies)
    try:
        agreement = export_adapter(checkpoint, config, adapter, lambda: build_scorer(config, checkpoint), base)
    except (ConfigError, RunError) as error:
        return str(error)
    assert (agreement.reference == "PEFT") == (find_spec("peft") is not None)
    return agreement.difference


def _peft_model(config: RunConfig, adapter: Path) -> tuple[Any, Any]:
    """(transformers' model with the adapter in it, the family with its head)."""
    from peft import PeftModel

    from pretrain.interop.hf.heads import with_head
    from pretrain.interop.hf.registry import hf_family_of, load

    family = hf_family_of(config.model)
    if config.model.task_head is not None:
        family = with_head(family, config.objective)
    base, _, _ = load(family, config.model, adapter / BASE)
    return PeftModel.from_pretrained(base, adapter, is_trainable=True).get_base_model().eval(), family


def _rows(config: RunConfig, theirs: Any) -> tuple[Rows, dict[str, Any]]:
    """A batch, and the labels that transformers takes, if it computes the loss itself."""
    from pretrain.interop.hf.gate import head_rows_for, rows_for
    from tests.multirank.test_hf_heads import rows_with_labels

    if config.model.task_head is None:
        return rows_for(config), {}
    return rows_with_labels(config, head_rows_for(config, theirs.config))


def _loss(config: RunConfig, theirs: Any, rows: Rows, labels: dict[str, Any]) -> Any:
    import torch.nn.functional as F
    from torch import from_numpy

    from pretrain.interop.hf.hf_answers import hf_inputs, hf_outputs

    if labels:
        inputs = hf_inputs(theirs, rows, config.model.position_offset) | labels
        inputs.pop("decoder_input_ids", None)
        return theirs(**inputs).loss
    logits, *answers = hf_outputs(theirs, rows, config.model.position_offset)
    mask = from_numpy(rows.loss_mask)
    losses = F.cross_entropy(logits.transpose(1, 2), from_numpy(rows.labels), reduction="none")
    loss = (losses * mask).sum() / mask.sum()
    return loss + F.cross_entropy(answers[0], from_numpy(rows.next_sentence)) if answers else loss


def _parity(family: str, classifies: bool, adapter: Path) -> Any:
    """(our loss, PEFT's, our gradients, PEFT's) of one batch. A's that are one here are summed there."""
    config = lora_config(family, classifies)
    engine = build_engine(config)
    randomise(engine)
    theirs, hf_family = _peft_model(config, adapter)
    rows, labels = _rows(config, theirs)
    loss = _loss(config, theirs, rows, labels)
    loss.backward()
    engine.keeps_gradients = True
    result = engine.train_step(rows, 0.0, 1)
    named, parts = dict(theirs.named_parameters(remove_duplicate=False)), engine.gradients()
    ours = {name.removeprefix("gradient/"): part.pieces[0].value.clone() for name, part in parts.items()}
    expected = {}
    for link in hf_family.links_of_loaded(config.model):
        stem = link.mcore_names[0].removesuffix(".weight")
        if f"{stem}.lora_a.weight" in ours and ".experts." in stem:
            module, _, parameter = link.hf_names[0].rpartition(".")
            module += ".base_layer" * (parameter == "gate_up_proj")
            (a, b) = (named[f"{module}.lora_{x}.default.weight"].grad for x in "AB")
            experts = config.model.experts.count
            expected[f"{stem}.lora_a.weight"] = a.view(experts, RANK, -1)
            (expected[f"{stem}.lora_b.weight"],) = link.back(b.view(-1, RANK, experts).permute(2, 0, 1))
        elif f"{stem}.lora_a.weight" in ours:
            modules = [name.removesuffix(".weight") for name in link.hf_names]
            a, b = ([named[f"{m}.lora_{x}.default.weight"].grad for m in modules] for x in "AB")
            expected[f"{stem}.lora_a.weight"] = sum(a[1:], a[0])
            if any("_global" in name for name in modules):  # of Longformer, which are one projection here
                b = [x + y for x, y in zip(b[:3], b[3:], strict=True)] * 2
            (expected[f"{stem}.lora_b.weight"],) = link.back(*(x.T if hf_family.fan_in_fan_out else x for x in b))
        elif classifies and stem.startswith("head."):
            for own, name in zip(link.mcore_names, link.hf_names, strict=True):
                module, _, leaf = name.rpartition(".")
                saved = [n for n in named if n.replace(".modules_to_save.default", "") == name and "modules_to" in n]
                expected[own] = named[saved[0]].grad
                assert leaf in saved[0], module
    theirs_trained = sum(parameter.requires_grad for parameter in theirs.parameters())
    gradients = {name: value.numpy() for name, value in ours.items()}, {n: x.numpy() for n, x in expected.items()}
    return result.loss_sum / result.token_count, loss.item(), *gradients, theirs_trained


def _trajectory(adapter: Path) -> tuple[list[float], list[float]]:
    """(our losses, PEFT's) of ten steps of AdamW, from the same start and on the same rows."""
    import torch

    from pretrain.data.synthetic import SyntheticStream
    from tests.helpers.tiny import ROWS

    config = lora_config("gpt", False)
    fast = config.optimizer.model_copy(update={"learning_rate": 1e-2})
    config = config.model_copy(update={"optimizer": fast})
    engine = build_engine(config)
    randomise(engine)
    theirs, _ = _peft_model(config, adapter)
    optimizer = config.optimizer
    trained = [parameter for parameter in theirs.parameters() if parameter.requires_grad]
    adam = torch.optim.AdamW(
        trained,
        optimizer.learning_rate,
        (optimizer.beta1, optimizer.beta2),
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
    )
    found = []
    for step in range(1, 11):
        rows = replace(SyntheticStream(config).batch((step - 1) * ROWS, ROWS, 0, 1), documents=None)
        loss = _loss(config, theirs, rows, {})
        adam.zero_grad()
        loss.backward()
        adam.step()
        found.append(loss.item())
    return [loss for loss, _ in train_family(engine, range(1, 11))], found


def _loads_alone(adapter: Path) -> float:
    """The largest difference of logits from PEFT's own loading of both, by the name of the base in the adapter."""
    import torch
    from peft import AutoPeftModelForCausalLM

    theirs, _ = _peft_model(lora_config("gpt", False), adapter)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        return float(
            (AutoPeftModelForCausalLM.from_pretrained(adapter).eval()(ids).logits - theirs(ids).logits).abs().max()
        )


def _import(adapter: Path, base: Path | None, root: Path, merge: bool) -> Any:
    """(difference at the gate, config, state) of an imported adapter, or the error."""
    from pretrain.evaluate.opening import build_empty
    from pretrain.interop.hf.imports import import_hf, read_config
    from pretrain.interop.peft.unpack import unpack_adapter

    try:
        updates = unpack_adapter(adapter, base, root / "unpacked", root / "run", merge=merge, warn=lambda line: None)
        config = updates.config_with_updates(read_config(root / "unpacked", root / "run"), root / "unpacked")
        engine = build_empty(config)
        agreement = import_hf(root / "unpacked", config, engine, lambda line: None, updates)
    except (ConfigError, RunError) as error:
        return str(error)
    assert (agreement.reference == "PEFT") == (find_spec("peft") is not None)
    return agreement.difference, config, whole_state(engine)


def _adapter_of_peft(base: Path, directory: Path, settings: dict[str, Any]) -> Any:
    """Writes an adapter with random matrices, as PEFT does, and returns the state of the merged model."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(5)
    hf_model = AutoModelForCausalLM.from_pretrained(base)
    model = get_peft_model(hf_model, LoraConfig(**({"init_lora_weights": False} | settings)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter) * parameter.requires_grad)
    model.save_pretrained(directory)
    return {name: x.clone().numpy() for name, x in model.merge_and_unload().state_dict().items()}


# The tests.


def _exported(family: str, classifies: bool, directory: Path) -> tuple[Path, float]:
    tokenizer = tokenizer_for(family, directory)
    run_ranks(4, _write, family, classifies, LAYOUT, tokenizer, directory / "checkpoints")
    checkpoint, adapter = directory / "checkpoints" / "step-00000000", directory / "adapter"
    return adapter, run_ranks(1, _export, family, classifies, checkpoint, adapter)[0]


CASES = [
    *((family, False) for family in ("gpt", "bert", "llama", "gemma", "bloom", "t5", "bart", "mixtral", "olmoe")),
    *(
        (family, True)
        for family in ("gpt", "bert", "roberta", "albert", "longformer", "tlm", "llama", "t5", "bart", "mixtral")
    ),
]


@needs_peft
@pytest.mark.parametrize(("family", "classifies"), only([("llama", False)], CASES))
def test_loss_and_every_gradient_are_those_of_peft(family: str, classifies: bool, tmp_path: Path) -> None:
    adapter, difference = _exported(family, classifies, tmp_path)
    assert difference <= 1e-4
    our_loss, their_loss, ours, expected, trained = run_ranks(1, _parity, family, classifies, adapter)[0]
    assert our_loss == pytest.approx(their_loss, abs=1e-5)
    assert ours.keys() == expected.keys()
    assert trained >= len(ours)
    assert max(np.abs(gradient).max() for gradient in expected.values()) > 0.01
    for name, gradient in expected.items():
        assert np.abs(ours[name] - gradient).max() <= 1e-5 * max(1.0, np.abs(gradient).max()), name


@pytest.mark.slow
@needs_peft
def test_ten_steps_are_those_of_peft(tmp_path: Path) -> None:
    adapter, _ = _exported("gpt", False, tmp_path)
    ours, theirs = run_ranks(1, _trajectory, adapter)[0]
    assert theirs[-1] < theirs[0] - 0.05, "it learns"
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert run_ranks(1, _loads_alone, adapter)[0] <= 1e-5


@pytest.mark.parametrize(("family", "classifies"), only([("bert", True)], CASES))
def test_an_adapter_goes_to_peft_and_back(family: str, classifies: bool, tmp_path: Path) -> None:
    adapter, difference = _exported(family, classifies, tmp_path)
    assert difference <= 1e-4
    assert {path.name for path in adapter.iterdir()} >= {CONFIG, WEIGHTS, BASE, "README.md", "tokenizer.json"}
    settings = read_json(adapter / CONFIG)
    assert (settings["r"], settings["lora_alpha"]) == (RANK, ALPHA)
    assert Path(settings["base_model_name_or_path"]) == adapter / BASE
    found, config, state = run_ranks(1, _import, adapter, None, tmp_path, False)[0]
    assert found <= 1e-4
    lora, former = config.finetune.lora, lora_config(family, classifies).finetune.lora
    assert former is not None
    assert (lora.rank, lora.alpha, set(lora.targets)) == (former.rank, former.alpha, set(former.targets))
    for name, weights in state.items():
        expected = value(name.removeprefix("model/"), weights.shape)
        if "word_embeddings" in name or "output_layer" in name:
            expected[VOCABULARY:] = 0
        if "position_embeddings" not in name or not config.model.is_encoder_decoder:  # of two lengths
            assert np.array_equal(weights, expected), name
    merged, plain, state = run_ranks(1, _import, adapter, None, tmp_path / "merged", True)[0]
    assert merged <= 1e-4
    assert plain.finetune.lora is None
    assert not any("lora" in name for name in state)


def test_a_base_with_other_weights_is_refused(tmp_path: Path) -> None:
    adapter, _ = _exported("gpt", False, tmp_path)
    checkpoint, base = tmp_path / "checkpoints" / "step-00000000", tmp_path / "base"
    shutil.copytree(adapter / BASE, base)
    again = tmp_path / "again"
    assert run_ranks(1, _export, "gpt", False, checkpoint, again, str(base))[0] <= 1e-4
    assert read_json(again / CONFIG)["base_model_name_or_path"] == str(base)
    assert not (again / BASE).exists()
    _change(base, "transformer.h.1.mlp.c_fc.weight")
    problem = run_ranks(1, _export, "gpt", False, checkpoint, tmp_path / "third", str(base))[0]
    assert "has other values in transformer.h.1.mlp.c_fc.weight" in problem
    assert not (tmp_path / "third").exists()


def _change(directory: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    tensors[name][0, 0] += 1e-3
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def test_an_update_of_gpt_neo_is_refused_where_its_layers_hold_norms(tmp_path: Path) -> None:
    _, problem = _exported("gpt-banded", False, tmp_path)
    assert "export the merged model with --to hf" in str(problem)


@pytest.mark.slow
@needs_peft
def test_adapters_of_peft_are_imported_where_they_have_one_a_for_each_matrix(tmp_path: Path) -> None:
    base = _exported("llama", False, tmp_path)[0] / BASE
    kinds: dict[str, dict[str, Any]] = {
        "apart": {"target_modules": ["q_proj", "v_proj"]},
        "down": {"target_modules": ["down_proj"], "r": 3, "lora_alpha": 7, "lora_dropout": 0.1},
        "some": {"target_modules": ["down_proj"], "layers_to_transform": [1]},
        "dora": {"target_modules": ["down_proj"], "use_dora": True},
        "rslora": {"target_modules": ["down_proj"], "r": 4, "use_rslora": True},
        "pissa": {"target_modules": ["down_proj"], "init_lora_weights": "pissa"},
    }
    merged = {
        name: run_ranks(1, _adapter_of_peft, base, tmp_path / name, settings)[0] for name, settings in kinds.items()
    }
    found = {name: run_ranks(1, _import, tmp_path / name, base, tmp_path / f"{name}-run", False)[0] for name in kinds}
    assert "has no single A for model.layers.0.self_attn.q_proj, model.layers.0.self_attn.k_proj" in found["apart"]
    assert "updates fc2 of some layers and not decoder.layers.0.mlp.linear_fc2.weight" in found["some"]
    assert "has use_dora=True, which is not known here" in found["dora"]
    lora = found["down"][1].finetune.lora
    assert (lora.rank, lora.alpha, lora.targets, lora.dropout) == (3, 7, ["fc2"], 0.1)
    assert found["rslora"][1].finetune.lora.scale == 8 / 2
    assert found["pissa"][0] <= 1e-4
    assert found["pissa"][1].finetune.lora.targets == ["fc2"]
    for name in ("apart", "some", "down"):
        difference, config, state = run_ranks(1, _import, tmp_path / name, base, tmp_path / f"{name}-merged", True)[0]
        assert difference <= 1e-4
        assert config.finetune.lora is None
        expected = merged[name]["model.layers.1.mlp.down_proj.weight"]
        assert np.allclose(state["model/decoder.layers.1.mlp.linear_fc2.weight"], expected, atol=1e-6)
    damaged = tmp_path / "down" / CONFIG
    damaged.write_text(json.dumps(read_json(damaged) | {"r": 5}))
    assert (
        "has no B beside it that fits r=5" in run_ranks(1, _import, tmp_path / "down", base, tmp_path / "x", False)[0]
    )


@needs_peft
def test_a_tied_base_whose_ends_an_adapter_trained_apart_is_imported_untied(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    base = _exported("llama", False, tmp_path)[0] / BASE
    tensors = load_file(base / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    (base / "config.json").write_text(json.dumps(read_json(base / "config.json") | {"tie_word_embeddings": True}))
    settings = {"target_modules": ["down_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}
    run_ranks(1, _adapter_of_peft, base, tmp_path / "both", settings)
    difference, config, state = run_ranks(1, _import, tmp_path / "both", base, tmp_path / "out", False)[0]
    assert difference <= 1e-4
    assert not config.model.tie_word_embeddings
    trained = load_file(tmp_path / "both" / WEIGHTS)
    for ours, theirs in (("embedding.word_embeddings", "model.embed_tokens"), ("output_layer", "lm_head")):
        expected = trained[f"base_model.model.{theirs}.weight"].numpy()
        assert np.array_equal(state[f"model/{ours}.weight"][: len(expected)], expected)


@needs_peft
@pytest.mark.slow
def test_adapters_of_experts_are_imported(tmp_path: Path) -> None:
    """PEFT names the update of a layer's only trained parameter as it names the first of two."""
    base = _exported("mixtral", False, tmp_path)[0] / BASE
    for parameter, target in (("down_proj", "fc2"), ("gate_up_proj", "fc1")):
        settings = {
            "target_modules": ["o_proj"],
            "target_parameters": [f"experts.{parameter}"],
            "r": 3,
            "lora_alpha": 7,
        }
        made = run_ranks(1, _adapter_of_peft, base, tmp_path / target, settings)[0]
        difference, config, _ = run_ranks(1, _import, tmp_path / target, base, tmp_path / f"{target}-run", False)[0]
        assert difference <= 1e-4
        lora = config.finetune.lora
        assert (lora.rank, lora.alpha, set(lora.targets)) == (3, 7, {"projection", target})
        _, _, state = run_ranks(1, _import, tmp_path / target, base, tmp_path / f"{target}-merged", True)[0]
        expected = made[f"model.layers.1.mlp.experts.{parameter}"]
        found = state[f"model/decoder.layers.1.mlp.experts.linear_{target}.weight"]
        if target == "fc1":  # gates, then values
            found = np.concatenate((found[:, 0::2], found[:, 1::2]), axis=1)
        assert np.allclose(found, expected, atol=1e-6)


@pytest.mark.slow
def test_an_update_of_dense_layers_beside_experts_is_refused(tmp_path: Path) -> None:
    _, problem = _exported("qwen3_moe", False, tmp_path)
    assert "PEFT takes the names of model.layers.0.mlp.gate_proj and of layers like it for those of experts" in problem


def test_target_modules_are_named_by_the_ends_of_their_names() -> None:
    modules = ["h.0.attn", "h.0.attn.c_proj", "h.0.mlp.c_proj", "h.1.attn.c_proj", "h.1.mlp.c_proj", "lm_head"]
    assert shortest_suffixes([modules[1], modules[3]], modules) == ["attn.c_proj"]
    assert shortest_suffixes([name for name in modules if "c_proj" in name], modules) == ["c_proj"]
    assert shortest_suffixes(["h.1.mlp.c_proj"], modules) == ["1.mlp.c_proj"]
    assert LAYER


def _of_trained_ends(family: str, tokenizer: Path, root: Path) -> Any:
    """What the export says; or the differences of our logits from PEFT's, with the adapter on its base and on one with
    other ends, and what import makes of it."""
    import torch
    from peft import PeftModel

    from pretrain.evaluate.opening import build_scorer
    from pretrain.interop.hf.gate import our_answers, rows_for
    from pretrain.interop.hf.registry import hf_family_of, load
    from pretrain.interop.peft.export import export_adapter

    config = lora_config(family, False, modules_to_save=["embedding", "head"])
    engine = build_engine(config)
    randomise(engine)
    checkpoint, adapter = save(engine, config, tokenizer, root / "checkpoints"), root / "adapter"
    try:
        export_adapter(checkpoint, config, adapter, lambda: build_scorer(config, checkpoint), None)
    except ConfigError as error:
        return str(error)
    theirs, _, _ = load(hf_family_of(config.model), config.model, adapter / BASE)
    rows = rows_for(config)
    ours = our_answers(build_scorer(config, checkpoint), config.model, rows)[0]
    for end in (theirs.get_input_embeddings(), theirs.get_output_embeddings()):
        torch.nn.init.normal_(end.weight)  # as before training
    read = PeftModel.from_pretrained(theirs, adapter)
    with torch.no_grad():
        logits = read(torch.from_numpy(rows.tokens)).logits.numpy()
    return float(np.abs(logits - ours[..., : logits.shape[-1]].numpy()).max())


@needs_peft
def test_trained_ends_are_modules_of_an_adapter_or_refused(tmp_path: Path) -> None:
    tokenizer = tokenizer_for("llama", tmp_path)
    assert run_ranks(1, _of_trained_ends, "llama", tokenizer, tmp_path / "llama")[0] <= 1e-4
    assert "export the merged model with --to hf" in run_ranks(1, _of_trained_ends, "gemma", tokenizer, tmp_path)[0]
