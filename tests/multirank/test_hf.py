"""Every family to Hugging Face and back: from a checkpoint of four ranks, through both gates, to the same bits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import from_numpy

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError, RunError
from tests.helpers import classics
from tests.helpers.breadth import slow
from tests.helpers.families import FAMILIES, each, family_config
from tests.helpers.hf import randomise, read_json, save, tokenizer_for, value, with_weights_of
from tests.helpers.hf_folders import changed, tensors, write
from tests.helpers.hf_folders import config as settings
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, tiny_config, whole_state

VOCABULARY = 390  # no multiple of 128: rows that pad it must not be exported
GPT = {"gpt": {"attention": {}}, "gpt-post": {"attention": {}, "norm": "post"}, "gpt-banded": {}}
NO_SEGMENTS = FAMILIES["bert"]["model"] | {"segments": 0, "binary_head": False, "vocabulary": VOCABULARY}
NO_CLASS = (
    *classics.names("NO_CLASS"),
    "shared_experts",
    "biased_experts",
    "prefix-lm",
    "adaptive",
)
LIKE_OTHERS = ("gpt-post", "distilbert")
"""beside gpt and bert, in what goes out and comes back"""
EXPORTED = [*GPT, "distilbert", *(family for family in FAMILIES if family not in NO_CLASS)]
LINEAR = [family for family in EXPORTED if family != "gpt-banded"]
"""those whose gradients, as well as their weights, are Hugging Face's in another order"""
LAYOUT = {"tensor": 2, "pipeline": 2}
SPECIALS = Specials(pad=1, cls=0, sep=2, mask=3, start=1, end=2, sentinels=(), vocabulary=VOCABULARY)


def _config(family: str, parallel: dict[str, Any]) -> RunConfig:
    if family in GPT:
        return tiny_config(model={"vocabulary": VOCABULARY} | GPT[family], parallel=parallel)
    if family == "distilbert":
        return tiny_config(model=NO_SEGMENTS, objective={"name": "masked"}, parallel=parallel, optimizer={"eps": 1e-6})
    return family_config(family, model={"vocabulary": VOCABULARY}, parallel=parallel)


# What runs on ranks. transformers takes seconds to import: only where it is needed.


def _write(family: str, tokenizer: Path, directory: Path) -> None:
    config = _config(family, LAYOUT)
    engine = build_engine(config)
    randomise(engine)
    save(engine, config, tokenizer, directory)


def _there_and_back(family: str, checkpoint: Path, exported: Path, run: Path) -> Any:
    """(largest differences at both gates, the weights that came back, warnings)."""
    from pretrain.evaluate.opening import build_empty, build_scorer
    from pretrain.interop.hf.export import export
    from pretrain.interop.hf.imports import import_hf, read_config

    config = _config(family, {})
    there = export(checkpoint, config, exported, lambda: build_scorer(config, checkpoint))
    imported, warnings = read_config(exported, run), []
    if imported.model.is_encoder_decoder:  # which Hugging Face's configs do not say
        lengths = {"sequence_length": config.model.sequence_length, "target_length": config.model.target_length}
        imported = imported.model_copy(update={"model": imported.model.model_copy(update=lengths)})
    engine = build_empty(imported)
    back = import_hf(exported, imported, engine, warnings.append)
    return there, back, whole_state(engine), warnings


def _export_with(family: str, break_links: str, checkpoint: Path, exported: Path) -> str:
    from pretrain.evaluate.opening import build_scorer
    from pretrain.interop.hf import export as exports
    from pretrain.interop.hf import links

    config = _config(family, {})
    right = exports.hf_family_of(config.model)

    def wrong(model: Any) -> Any:
        """Two tensors of one shape change places."""
        for link in right.links(model):
            if break_links in link.mcore_names[0]:
                first, *middle, last = link.hf_names
                link = links.Link(link.mcore_names, (last, *middle, first), link.out, link.back)
            yield link

    exports.hf_family_of = lambda model: replace(right, links=wrong)
    with pytest.raises(RunError) as error:
        exports.export(checkpoint, config, exported, lambda: build_scorer(config, checkpoint))
    return str(error.value)


def _gradients(family: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], float, float]:
    """(ours, theirs, our loss, theirs) of one batch: of each of their parameters that a link leads to."""
    import torch.nn.functional as F
    from torch import from_numpy

    from pretrain.interop.hf.gate import rows_for
    from pretrain.interop.hf.hf_answers import hf_outputs

    config = _config(family, {})
    config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"clip_norm": 0.0})})
    engine = build_engine(config)
    randomise(engine)
    theirs, links = with_weights_of(engine, config, SPECIALS)
    batch = rows_for(config)
    engine.keeps_gradients = True
    result = engine.train_step(batch, 0.0, 1)
    logits, *answers = hf_outputs(theirs.eval(), batch, config.model.position_offset)
    labels, mask = (from_numpy(values[:, -logits.shape[1] :]) for values in (batch.labels, batch.loss_mask))
    losses = F.cross_entropy(
        logits.transpose(1, 2),
        labels,
        reduction="none",
        label_smoothing=config.objective.label_smoothing,
    )
    losses = losses + config.objective.z_loss * logits.logsumexp(-1).square()
    loss = (losses * mask).sum() / mask.sum()
    if answers:
        loss = loss + F.cross_entropy(answers[0], from_numpy(batch.next_sentence))
    loss.backward()
    named = dict(theirs.named_parameters(remove_duplicate=False))
    ours, expected = {}, {}
    parts = engine.gradients()
    for link in links:
        (own,) = link.mcore_names
        if own.endswith("router.bias"):  # which nothing learns by its gradient
            assert f"gradient/{own}" not in parts
            continue
        for name, gradient in zip(link.hf_names, link.out(parts[f"gradient/{own}"].pieces[0].value), strict=True):
            if ("token_type" in name and config.model.segments == 0) or "_global." in name:  # which ours has not
                continue
            if named[name].grad is None:  # of parts that a Transformer-XL has no use for
                assert not gradient.any(), name
                continue
            ours[name], expected[name] = gradient.clone().numpy(), named[name].grad.numpy()
            of_global = name.replace(".weight", "_global.weight").replace(".bias", "_global.bias")
            if of_global != name and of_global in named:
                expected[name] += named[of_global].grad.numpy()  # of Longformer, which is one projection here
    of_words = ("word_embeddings.weight", "shared.weight", "transformer.embeddings.weight")
    for tokens in (x for x in expected if x.endswith(of_words)):
        ours[tokens][SPECIALS.pad] = expected[tokens][SPECIALS.pad] = 0  # theirs learns nothing from reading padding
    return ours, expected, result.loss_sum / result.token_count, loss.item()


def _with_padding_before_and_within(family: str) -> float:
    """The largest difference of logits, where there is no padding."""
    from dataclasses import replace

    from pretrain.interop.hf.gate import rows_for
    from pretrain.interop.hf.hf_answers import hf_logits

    config = _config(family, {})
    engine = build_engine(config, train=False)
    randomise(engine)
    theirs, _ = with_weights_of(engine, config, SPECIALS)
    batch = rows_for(config)
    shown = np.ones_like(batch.tokens, dtype=bool)
    shown[0, :3] = shown[1, 10:15] = False
    batch = replace(batch, attention_mask=shown)
    ours, expected = engine.logits(batch)[0].numpy(), hf_logits(theirs, batch)[0].numpy()
    return float(np.abs(ours - expected)[shown].max())


def _imports(folders: dict[str, Path], root: Path) -> dict[str, tuple[float, list[str]] | str]:
    """What `pretrain import` makes of each: the gate's difference and warnings, or the sentence."""
    from pretrain.evaluate.opening import build_empty
    from pretrain.interop.hf.imports import import_hf, read_config

    found: dict[str, tuple[float, list[str]] | str] = {}
    for name, folder in folders.items():
        warnings: list[str] = []
        try:
            config = read_config(folder, root / f"run-{name}")
            difference = import_hf(folder, config, build_empty(config), warnings.append).difference
            found[name] = difference, _of_weights(warnings)
        except (ConfigError, RunError) as error:
            found[name] = str(error)
        assert not ((root / f"run-{name}" / "checkpoints").exists() and isinstance(found[name], str))
    return found


def _of_weights(warnings: list[str]) -> list[str]:
    """Leaves out warnings about how the tokenizers of these folders read a mask."""
    return [line for line in warnings if "reads the prompt" not in line]


def _imported(folder: Path, run: Path) -> tuple[bool, dict[str, np.ndarray], list[str]]:
    """(whether our model has a head of two segments, its weights, warnings)."""
    from pretrain.evaluate.opening import build_empty
    from pretrain.interop.hf.imports import import_hf, read_config

    config, warnings = read_config(folder, run), []
    engine = build_empty(config)
    import_hf(folder, config, engine, warnings.append)
    return config.model.binary_head, whole_state(engine), _of_weights(warnings)


# The tests.


@pytest.mark.parametrize("family", each(LINEAR))
def test_loss_and_every_gradient_are_those_of_hugging_face(family: str) -> None:
    """What only layouts are compared in could be wrong on all of them alike."""
    ours, expected, our_loss, their_loss = run_ranks(1, _gradients, family)[0]
    assert our_loss == pytest.approx(their_loss, abs=1e-5)
    assert len(ours) > 20
    largest = max(np.abs(value).max() for value in expected.values())
    for name, gradient in expected.items():
        assert np.abs(ours[name] - gradient).max() <= 1e-4 * np.abs(gradient).max() + 1e-6 * largest, name


@pytest.mark.parametrize("family", ["bigbird", "tlm", *classics.names("PADDED_WITHIN")])
def test_padding_that_is_not_at_the_end_changes_no_answer_about_words(family: str) -> None:
    """BigBird's first block counts several times: there as a bias, here by keys that are there several times."""
    assert run_ranks(1, _with_padding_before_and_within, family)[0] <= 1e-4


@pytest.mark.parametrize("family", [slow(name) if name in LIKE_OTHERS else name for name in each(EXPORTED)])
def test_a_family_goes_to_hugging_face_and_back(family: str, tmp_path: Path) -> None:
    run_ranks(4, _write, family, tokenizer_for(family, tmp_path), tmp_path / "checkpoints")
    checkpoint = tmp_path / "checkpoints" / "step-00000000"
    exported, run = tmp_path / "hf", tmp_path / "run"
    there, back, weights, warnings = run_ranks(1, _there_and_back, family, checkpoint, exported, run)[0]
    assert there.difference <= 1e-4
    assert back.difference <= 1e-4
    assert not warnings
    folded = ("input_layernorm", "linear_qkv") if family == "gpt-banded" else ()  # biases that GPT-Neo has not
    for name, found in weights.items():
        if any(part in name for part in folded):
            continue
        expected = value(name.removeprefix("model/"), found.shape)
        if "word_embeddings" in name or "output_layer" in name:  # rows that pad the vocabulary come back as zeros
            expected[VOCABULARY:] = 0
        assert np.array_equal(found, expected), name
    names = {path.name for path in exported.iterdir()}
    assert {"config.json", "model.safetensors", "README.md"} <= names
    assert {"tokenizer.json", "tokenizer_config.json", "original"} <= names
    assert read_json(exported / "config.json")["vocab_size"] == VOCABULARY


@pytest.mark.parametrize(("family", "where"), [("bert", "linear_qkv"), ("t5", "linear_kv"), ("bart", "linear_kv")])
def test_the_gate_sees_weights_that_changed_places(family: str, where: str, tmp_path: Path) -> None:
    run_ranks(1, _write_alone, family, tokenizer_for(family, tmp_path), tmp_path / "checkpoints")
    checkpoint = tmp_path / "checkpoints" / "step-00000000"
    message = run_ranks(1, _export_with, family, where, checkpoint, tmp_path / "hf")[0]
    assert "logits differ by" in message
    assert not (tmp_path / "hf").exists()
    assert not list(tmp_path.glob("*.tmp"))


def _write_alone(family: str, tokenizer: Path, directory: Path) -> None:
    config = _config(family, {})
    engine = build_engine(config, train=False)
    randomise(engine)
    save(engine, config, tokenizer, directory)


def test_roberta_is_not_exported_with_positions_that_transformers_would_count_otherwise() -> None:
    from data_pipeline.tokenizers.specials import Specials
    from pretrain.interop.hf.families.roberta import hf_config

    specials = Specials(pad=7, cls=1, sep=2, mask=3, start=0, end=2, sentinels=(), vocabulary=VOCABULARY)
    with pytest.raises(ConfigError, match="counts positions from the id of padding"):
        hf_config(_config("roberta", {}).model, specials)


def test_only_what_both_implementations_agree_on_is_imported(tmp_path: Path) -> None:
    whole = {kind: write(kind, tmp_path / kind) for kind in ("gpt_neo", "bert", "xlm", "xlm-alone", "xlm-roberta")}

    def without_head(values: dict[str, Any]) -> None:
        for name in [name for name in values if name.startswith("cls.")]:
            del values[name]

    def not_numbers(values: dict[str, Any]) -> None:
        values["transformer.h.0.ln_1.bias"][3] = float("nan")

    changes = {
        "more": (
            "gpt_neo",
            lambda values: values.update({"transformer.h.9.ln_1.bias": values["transformer.ln_f.bias"].clone()}),
        ),
        "NaN": ("gpt_neo", not_numbers),
        "older": (
            "gpt_neo",
            lambda values: values.update(
                {"transformer.h.0.attn.attention.masked_bias": values["transformer.ln_f.bias"][0].clone()}
            ),
        ),
        "headless": ("bert", without_head),
    }
    folders = {n: changed(whole[kind], tmp_path / n, tensors(change)) for n, (kind, change) in changes.items()}
    found = run_ranks(1, _imports, whole | folders, tmp_path)[0]
    assert found["gpt_neo"][0] <= 1e-4, "rows of 32 positions, and local layers that see 5"
    assert not found["gpt_neo"][1]
    assert found["older"] == found["gpt_neo"], "a constant of attention that transformers saved once"
    assert found["bert"][0] <= 1e-4
    assert max(found[kind][0] for kind in ("xlm", "xlm-alone", "xlm-roberta")) <= 1e-4
    assert "has a tensor that the model has no place for, transformer.h.9.ln_1.bias" in found["more"]
    assert "transformer.h.0.ln_1.bias has values that are no finite numbers" in found["NaN"]
    assert "has no weights for cls.predictions.bias" in found["headless"][1][0]


def test_a_pooler_is_imported_whatever_class_the_config_names(tmp_path: Path) -> None:
    """Such as the published bert-base-uncased: its config names BertForMaskedLM, and its file has the pooler."""
    pooler = {f"pooler.dense.{leaf}": value(leaf, shape) for leaf, shape in {"weight": (32, 32), "bias": (32,)}.items()}

    def with_pooler(values: dict[str, Any]) -> None:
        values.update({f"bert.{name}": from_numpy(one) for name, one in pooler.items()})

    def body_alone(values: dict[str, Any]) -> None:
        with_pooler(values)
        renamed = {name.removeprefix("bert."): one for name, one in values.items() if name.startswith("bert.")}
        values.clear()
        values.update(renamed)

    whole = write("bert", tmp_path / "whole")
    for name, change in {"masked": with_pooler, "body": body_alone}.items():
        folder = changed(whole, tmp_path / name, tensors(change))
        has_head, state, warnings = run_ranks(1, _imported, folder, tmp_path / f"run-{name}")[0]
        assert has_head
        assert all((state[f"model/head.{one}".replace(".dense", "")] == pooler[one]).all() for one in pooler)
        assert "cls.seq_relationship.weight" in warnings[0]
        assert not any("pooler.dense" in one for one in warnings)
    assert not run_ranks(1, _imported, whole, tmp_path / "run-whole")[0][0]


def test_sparse_encoders_are_imported_as_far_as_they_are_known(tmp_path: Path) -> None:
    """Their random weights have projections of global tokens and poolers that are not the others' or zero."""
    whole = {kind: write(kind, tmp_path / kind) for kind in ("big_bird", "big_bird-full", "longformer")}
    changes = {
        "apart": ("longformer", settings(global_tokens=2)),
        "odd": ("longformer", settings(attention_window=7)),
        "segments": ("longformer", settings(type_vocab_size=2)),
        "decoder": ("big_bird", settings(is_decoder=True)),
    }
    folders = {name: changed(whole[kind], tmp_path / name, change) for name, (kind, change) in changes.items()}
    found = run_ranks(1, _imports, whole | folders, tmp_path)[0]
    assert max(found[kind][0] for kind in whole) <= 1e-4
    assert found["big_bird"][1] == []
    assert "bert.pooler (no head reads it)" in found["big_bird-full"][1][0]
    assert "query_global, key_global and value_global of all layers (no token" in found["longformer"][1][0]
    assert "its global tokens have projections of their own" in found["apart"]
    assert "attention_window 7 is not known here" in found["odd"]
    assert "type_vocab_size 2 is not known here" in found["segments"]
    assert "is_decoder True is not known here" in found["decoder"]


@pytest.mark.parametrize(
    ("family", "pattern", "sentence"),
    [
        ("bert", [{"name": "bigbird", "block": 4, "last": 1}], "no random blocks but the first one again"),
        ("bert", [{"name": "bigbird", "block": 8, "last": 1, "random": 0, "first_again": 1}], "is dense up to 56 pos"),
        ("bert", ["dense", {"name": "bigbird"}], "has bigbird attention only"),
        ("roberta", [{"name": "banded", "window": 3}, {"name": "banded", "window": 4}], "each divides the widest"),
        ("roberta", ["banded", {"name": "local_global", "window": 9, "tokens": 1}], "the same global tokens in all"),
    ],
)
def test_patterns_that_hugging_face_has_no_form_for_are_not_exported(
    family: str, pattern: list[Any], sentence: str
) -> None:
    from pretrain.interop.hf.registry import hf_family_of

    model = family_config(family, model={"vocabulary": VOCABULARY, "attention": {"pattern": pattern}}).model
    with pytest.raises(ConfigError, match=sentence):
        hf_family_of(model).hf_config(model, SPECIALS)


def test_an_unknown_directory_is_refused(tmp_path: Path) -> None:
    from pretrain.interop.hf.imports import read_config

    with pytest.raises(ConfigError, match=r"has no config\.json"):
        read_config(tmp_path, tmp_path / "run")
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ConfigError, match="is a mamba; known are gpt2, big_bird, distilbert, bert"):
        read_config(tmp_path, tmp_path / "run")
