"""Task heads of fine-tuned models beside transformers' classes: the same loss, gradients and answers, and to Hugging
Face and back to the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.errors import ConfigError, RunError
from tests.helpers import classics
from tests.helpers.breadth import only, slow
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.hf import randomise, read_json, save, tokenizer_for, value
from tests.helpers.hf_folders import changed, tensors, write
from tests.helpers.hf_folders import config as settings
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import LENGTH, build_engine, tiny_config, whole_state

VOCABULARY = 390
OWN: dict[str, dict[str, Any]] = {
    "gpt": {"attention": {}}, "gpt-untied": {"attention": {}, "tie_word_embeddings": False},
    "gpt-post": {"attention": {}, "norm": "post"}, "gpt-banded": {},
    "distilbert": FAMILIES["bert"]["model"] | {"segments": 0, "binary_head": False},
}  # fmt: skip
OBJECTIVES: dict[str, dict[str, Any]] = {
    "classification": {"name": "classification", "labels": ["no", "maybe", "yes"]},
    "regression": {"name": "regression"},
    "tagging": {"name": "tagging", "labels": ["O", "B-LOC", "I-LOC", "B-PER"]},
    "spans": {"name": "spans", "max_question": 4, "stride": 2},
}
CONDITIONAL = {"conditional spans": OBJECTIVES["spans"] | {"conditional_end": True}}
CHOICES: dict[str, dict[str, Any]] = {
    "choice": {"name": "choice", "max_choices": 3},
    "choice and tokens": {"name": "choice", "max_choices": 3, "language_model_weight": 0.5},
    "both orders": {**OBJECTIVES["classification"], "pair": "pair", "both_orders": True},
}
SPECIALS = Specials(pad=1, cls=0, sep=2, mask=3, start=1, end=2, sentinels=(), vocabulary=VOCABULARY)
_ENCODERS = ("bert", "albert", "roformer", "roberta", "longformer", "tlm", "xlnet", *classics.names("HEADED"))
_DECODERS = ("gpt", "gpt-banded", "bloom", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")
_ROWS_ALONE = ("gpt-post", "ctrl", "gemma")
"""classes of transformers for rows, and none for tokens"""
CASES = [
    *((family, name) for family in (*_ENCODERS, *_DECODERS) for name in OBJECTIVES),
    *((family, name) for family in _ROWS_ALONE for name in ("classification", "regression")),
    *((family, name) for family in ("t5", "t5v1.1", "bart") for name in ("classification", "regression", "spans")),
    ("xlnet", "conditional spans"),
    *((family, name) for family in ("gemma2", "deepseek_v3") for name in ("classification", "regression", "tagging")),
    *(("deepseek_v2", name) for name in ("classification", "regression")),
    ("bigbird", "tagging"),
    ("distilbert", "tagging"),
    ("distilbert", "spans"),
    *((family, "choice") for family in ("bert", "albert", "roberta", "bigbird", "xlnet", "gpt", "gpt-post")),
    *classics.names("HEADS"),
    *((family, "both orders") for family in ("gpt", "gpt-post")),
    *((family, "choice and tokens") for family in ("gpt", "gpt-untied", "gpt-post")),
]
QUICK = [
    ("bert", "classification"), ("bert", "spans"), ("roberta", "tagging"), ("roformer", "classification"),
    ("tlm", "regression"), ("gpt", "classification"), ("llama", "spans"), ("t5", "classification"),
    ("bart", "regression"), ("bert", "choice"), ("roberta", "choice"), ("gpt-post", "choice and tokens"),
    ("gpt-untied", "choice and tokens"), ("gpt-post", "both orders"), ("xlnet", "classification"),
    ("xlnet", "conditional spans"), ("mixtral", "classification"),
]  # fmt: skip
"""a case of each way in which heads differ"""
REFUSED = {
    ("bigbird", "classification"): "has the activation of its layers where ours has tanh",
    ("bigbird", "spans"): "its class has two more layers",
    ("distilbert", "classification"): "ends with ReLU, and that of a BERT with tanh",
    ("distilbert", "choice"): "ends with ReLU",
    ("t5", "tagging"): "its class reads the encoder's output where ours reads the decoder's",
    ("bart", "tagging"): "no class for token classification",
    ("transformer", "classification"): "a marian model for classification has no class for sequence classification",
    ("ctrl", "spans"): "no class for question answering",
    ("gpt-post", "tagging"): "no class for token classification",
    ("gemma", "spans"): "no class for question answering",
    ("roformer", "choice"): "its class reads the last position, without a dense layer",
    **classics.rows("HEADS_REFUSED"),
    ("longformer", "choice"): "its class makes the tokens of the question global",
    ("tlm", "choice"): "its class has a second linear layer",
    ("transformer-xl", "classification"): "its class has a dense layer before the last one",
    ("llama", "choice"): "no class for multiple choice",
    ("olmoe", "classification"): "no class for sequence classification",
    ("dots1", "tagging"): "no class for token classification",
    ("deepseek_v2", "tagging"): "no class for token classification",
    ("deepseek_v3", "spans"): "no class for question answering",
    ("bert", "conditional spans"): "no class for question answering with a conditional end",
}


def head_config(family: str, objective: str, parallel: dict[str, Any] | None = None) -> RunConfig:
    sections: dict[str, Any] = {
        "model": {"vocabulary": VOCABULARY} | OWN.get(family, {}),
        "parallel": parallel or {},
        "optimizer": {"clip_norm": 0.0},
    }
    if family == "distilbert":
        sections["objective"] = {"name": "masked"}
    config = tiny_config(**sections) if family in OWN else family_config(family, **sections)
    tree = config.model_dump(mode="json") | {"objective": (OBJECTIVES | CONDITIONAL | CHOICES)[objective]}
    tree["model"]["target_length"] = tree["model"]["target_length"] and LENGTH
    return RunConfig.model_validate(tree)


# What runs on ranks.


def _gradients(family: str, objective: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], float, float]:
    """(our gradients, theirs, our loss, theirs) of one batch, by the names of transformers; the loss is its own."""
    from pretrain.interop.hf.gate import head_rows_for
    from pretrain.interop.hf.heads import with_head
    from pretrain.interop.hf.hf_answers import hf_inputs
    from pretrain.interop.hf.registry import hf_family_of

    config = head_config(family, objective)
    engine = build_engine(config)
    randomise(engine)
    model = config.model
    hf_family = with_head(hf_family_of(model), config.objective, VOCABULARY - 1 if model.is_causal else None)
    links, state = list(hf_family.links_of_loaded(model)), engine.state()
    described = hf_family.hf_config(model, SPECIALS)
    if model.experts is not None:
        described._experts_implementation = "eager"
    theirs = hf_family.class_of(model)(described).eval()
    weights = {}
    for link in links:
        values = [state[f"model/{name}"].pieces[0].value for name in link.mcore_names]
        weights |= dict(zip(link.hf_names, (x.clone() for x in link.out(*values)), strict=True))
    theirs.load_state_dict(weights, strict=False)
    rows = head_rows_for(config, theirs.config)
    if config.objective.loss == "choice":
        loss = _loss_of_choices(config, theirs, rows)
    elif config.objective.texts_per_row > 1:
        rows = SyntheticStream(config).batch(0, 4, 0, 1)
        loss = _loss_of_both_orders(theirs, rows)
    else:
        rows, inputs = rows_with_labels(config, rows)
        inputs = hf_inputs(theirs, rows, model.position_offset) | inputs
        inputs.pop("decoder_input_ids", None)
        loss = theirs(**inputs).loss
    loss.backward()
    engine.keeps_gradients = True
    result = engine.train_step(rows, 0.0, 1)
    named, parts = dict(theirs.named_parameters(remove_duplicate=False)), engine.gradients()
    ours, expected = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for link in links:
        if link.mcore_names[0].endswith("router.bias"):  # which has none
            continue
        own = [parts[f"gradient/{name}"].pieces[0].value for name in link.mcore_names]
        for name, gradient in zip(link.hf_names, link.out(*own), strict=True):
            unused = (family == "bigbird" and "pooler" in name) or (model.segments == 0 and "token_type" in name)
            if unused or "_global." in name:  # which ours has not
                continue
            ours[name] = gradient.clone().numpy()
            leaf = name.rpartition(".")[2]
            sources = (name, f"{name.removesuffix(leaf)[:-1]}_global.{leaf}")  # of Longformer: one projection here
            grads = [named[source].grad for source in sources if source in named]
            expected[name] = sum(grad.numpy() for grad in grads if grad is not None)
    return ours, expected, result.loss_sum / result.token_count, loss.item()


def _loss_of_choices(config: RunConfig, theirs: Any, rows: Any) -> Any:
    """Loss of the class in transformers; GPT's classes have a second loss, that of the next token."""
    import torch

    from pretrain.interop.hf.hf_answers import choice_inputs

    inputs, right = choice_inputs(theirs, rows, config.model), torch.zeros(len(rows.tokens), dtype=torch.int64)
    if "mc_token_ids" not in inputs:
        return theirs(**inputs, labels=right).loss
    shown = torch.from_numpy(rows.documents >= 0).view_as(inputs["input_ids"])
    labels = inputs["input_ids"].masked_fill(~shown, -100)
    outputs = theirs(**inputs, mc_labels=right, labels=labels)
    assert outputs.loss > 1, "the loss of tokens counts"
    return outputs.mc_loss + config.objective.language_model_weight * outputs.loss


def _loss_of_both_orders(theirs: Any, rows: Any) -> Any:
    """The hidden states of both last tokens are added up before the classifier: what transformers has no class for."""
    import torch

    sums = []
    for tokens, documents in zip(rows.tokens, rows.documents, strict=True):
        texts = [torch.from_numpy(tokens[documents == number])[None] for number in (0, 1)]
        assert len(texts[0][0]) != len(texts[1][0])
        sums.append(sum(theirs.transformer(text).last_hidden_state[0, -1] for text in texts))
    labels = torch.from_numpy(rows.labels[rows.loss_mask > 0])
    return torch.nn.functional.cross_entropy(theirs.score(torch.stack(sums)), labels)


def rows_with_labels(config: RunConfig, rows: Any) -> tuple[Any, dict[str, Any]]:
    """Our rows, and the labels as transformers' class takes them: -100 where a token has none. Spans are of rows
    without padding in encoders: transformers takes padding for a possible answer."""
    from dataclasses import replace

    import torch

    from data_pipeline.batch import SPAN_END, SPAN_START

    random, mask = np.random.default_rng(3), rows.loss_mask > 0
    outputs = config.model.task_head.outputs if config.model.task_head else 0
    if config.objective.loss == "regression":
        targets = np.where(mask, random.standard_normal(mask.shape), 0).astype(np.float32)
        return replace(rows, targets=targets), {"labels": torch.from_numpy(targets[mask])}
    if config.objective.loss == "classes":
        labels = np.where(mask, random.integers(0, outputs, mask.shape), 0)
        rows = replace(rows, labels=labels, targets=None)
        if config.model.task_head and config.model.task_head.kind == "sequence":
            return rows, {"labels": torch.from_numpy(labels[mask])}
        return rows, {"labels": torch.from_numpy(np.where(mask, labels, -100))}
    if rows.attention_mask is not None:
        rows = replace(rows, attention_mask=np.ones_like(rows.attention_mask))
    every, ends = np.arange(len(mask)), np.array([9, 12])
    starts, labels = ends - 3, np.zeros(mask.shape, np.int64)
    labels[every, starts], labels[every, ends] = SPAN_START, SPAN_END
    loss_mask = (labels == SPAN_START).astype(np.float32)
    answers = {"start_positions": torch.from_numpy(starts), "end_positions": torch.from_numpy(ends)}
    return replace(rows, labels=labels, loss_mask=loss_mask), answers


# The tests.


@pytest.mark.parametrize(("family", "objective"), only(QUICK, (case for case in CASES if case[0] != "gpt-banded")))
def test_loss_and_every_gradient_are_those_of_transformers(family: str, objective: str) -> None:
    ours, expected, our_loss, their_loss = run_ranks(1, _gradients, family, objective)[0]
    assert our_loss == pytest.approx(their_loss, abs=1e-5)
    assert any(np.abs(expected[name]).max() > 0.1 for name in expected), "a gradient that can be told from rounding"
    for name, gradient in expected.items():
        if name.endswith(
            ("word_embeddings.weight", "shared.weight", "transformer.embeddings.weight", "embed_tokens.weight")
        ):
            ours[name][[SPECIALS.pad, -1]] = gradient[[SPECIALS.pad, -1]] = 0  # theirs learns nothing of padding
        assert np.abs(ours[name] - gradient).max() <= 1e-5 * max(1.0, np.abs(gradient).max()), name


def _write(family: str, objective: str, parallel: dict[str, Any], tokenizer: Path, directory: Path) -> None:
    config = head_config(family, objective, parallel)
    engine = build_engine(config)
    randomise(engine)
    save(engine, config, tokenizer, directory)


def _there_and_back(family: str, objective: str, checkpoint: Path, exported: Path, run: Path) -> Any:
    """(largest differences at both gates, the weights that came back, their config, warnings)."""
    from pretrain.evaluate.opening import build_empty, build_scorer
    from pretrain.interop.hf.export import export
    from pretrain.interop.hf.imports import import_hf, read_config

    config = head_config(family, objective)
    there = export(checkpoint, config, exported, lambda: build_scorer(config, checkpoint))
    imported, warnings = read_config(exported, run), []
    if imported.model.is_encoder_decoder:  # which Hugging Face's configs do not say
        lengths = {"sequence_length": config.model.sequence_length, "target_length": config.model.target_length}
        imported = imported.model_copy(update={"model": imported.model.model_copy(update=lengths)})
    engine = build_empty(imported)
    back = import_hf(exported, imported, engine, warnings.append)
    return there, back, whole_state(engine), imported, warnings


TRIPS = [
    ("gpt-banded", "classification"), ("bart", "spans"), ("gpt-untied", "choice and tokens"),
    *map(slow, (
        ("bert", "classification"), ("gpt", "regression"), ("bert", "choice"), ("gpt", "both orders"),
        ("xlnet", "conditional spans"),
        ("albert", "classification"), *classics.names("HEADS_THERE_AND_BACK"),
        ("roformer", "regression"), ("roberta", "classification"), ("roberta", "spans"),
        ("longformer", "tagging"), ("longformer", "classification"), ("tlm", "classification"), ("bigbird", "tagging"),
        ("gpt", "tagging"), ("gpt-post", "classification"), ("bloom", "classification"), ("llama", "classification"),
        ("llama", "spans"), ("mistral", "spans"), ("qwen2", "classification"), ("qwen3", "tagging"),
        ("gemma", "classification"), ("gemma2", "tagging"), ("ctrl", "regression"), ("t5", "classification"),
        ("t5v1.1", "spans"), ("bart", "classification"),
        ("roberta", "choice"), ("albert", "choice"), ("bigbird", "choice"), ("gpt", "choice"),
        ("gpt-post", "choice and tokens"), ("xlnet", "classification"), ("xlnet", "choice"), ("xlnet", "spans"),
        ("mixtral", "classification"), ("mixtral", "spans"), ("qwen3_moe", "tagging"), ("qwen3_moe", "spans"),
        ("deepseek_v2", "regression"), ("deepseek_v3", "tagging"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("family", "objective"), TRIPS)
def test_a_task_head_goes_to_hugging_face_and_back(family: str, objective: str, tmp_path: Path) -> None:
    layout = {"tensor": 2, "pipeline": 2}
    tokenizer = tokenizer_for(family, tmp_path)
    run_ranks(4, _write, family, objective, layout, tokenizer, tmp_path / "checkpoints")
    checkpoint, exported = tmp_path / "checkpoints" / "step-00000000", tmp_path / "hf"
    trip = run_ranks(1, _there_and_back, family, objective, checkpoint, exported, tmp_path / "run")[0]
    there, back, weights, imported, warnings = trip
    assert there.difference <= 1e-4
    assert back.difference <= 1e-4
    assert not warnings
    settings = (OBJECTIVES | CONDITIONAL | CHOICES)[objective]
    assert imported.objective.name == settings["name"]
    for key in ("labels", "max_choices", "language_model_weight", "conditional_end"):
        if key in settings:
            assert getattr(imported.objective, key) == settings[key]
    assert imported.model.task_head == head_config(family, objective).model.task_head
    folded = ("input_layernorm", "linear_qkv") if family == "gpt-banded" else ()  # biases that OWN-Neo has not
    for name, found in weights.items():
        if any(part in name for part in folded):
            continue
        expected = value(name.removeprefix("model/"), found.shape)
        if "word_embeddings" in name or "output_layer" in name:
            expected[VOCABULARY:] = 0
        assert np.array_equal(found, expected), name


@pytest.mark.parametrize(("family", "objective"), REFUSED)
def test_a_head_that_transformers_has_no_class_for_is_not_exported(family: str, objective: str) -> None:
    from pretrain.interop.hf.heads import with_head
    from pretrain.interop.hf.registry import hf_family_of

    config = head_config(family, objective)
    with pytest.raises(ConfigError, match=REFUSED[family, objective]):
        with_head(hf_family_of(config.model), config.objective)


def _exports_flipped(checkpoint: Path, exported: Path) -> str:
    """The error of an export whose classes changed places."""
    from dataclasses import replace

    from pretrain.evaluate.opening import build_scorer
    from pretrain.interop.hf import export as exports
    from pretrain.interop.hf import heads, links

    config = head_config("bert", "classification")

    def flipped(*arguments: Any) -> Any:
        right = heads.with_head(*arguments)

        def wrong(model: Any) -> Any:
            for link in right.links(model):
                if link.mcore_names == ("head.classifier.weight",):
                    link = links.one(link.mcore_names[0], link.hf_names, lambda x: [x.flip(0)], lambda x: x.flip(0))
                yield link

        return replace(right, links=wrong)

    exports.with_head = flipped  # type: ignore[assignment]
    with pytest.raises(RunError) as error:
        exports.export(checkpoint, config, exported, lambda: build_scorer(config, checkpoint))
    return str(error.value)


def _exports_with_the_end_as_padding(checkpoint: Path, exported: Path) -> str:
    """The error of an export whose config names the end of text as padding, which transformers passes over."""
    from pretrain.evaluate.opening import build_scorer
    from pretrain.interop.hf import export as exports

    config = head_config("gpt", "classification")
    exports.decoder_padding = lambda model, objective, tokenizer: objective.specials(tokenizer).end
    with pytest.raises(RunError) as error:
        exports.export(checkpoint, config, exported, lambda: build_scorer(config, checkpoint))
    return str(error.value)


def _imports(folders: dict[str, Path], root: Path) -> dict[str, tuple[float, Any] | str]:
    """What `pretrain import` makes of each: the gate's difference and the objective, or the sentence."""
    from pretrain.evaluate.opening import build_empty
    from pretrain.interop.hf.imports import import_hf, read_config

    found: dict[str, tuple[float, Any] | str] = {}
    for name, folder in folders.items():
        try:
            config = read_config(folder, root / f"run-{name}")
            agreement = import_hf(folder, config, build_empty(config), lambda line: None)
            found[name] = agreement.difference, config.objective.model_dump(exclude_unset=True)
        except (ConfigError, RunError) as error:
            found[name] = str(error)
    return found


def test_the_gate_sees_classes_that_changed_places(tmp_path: Path) -> None:
    tokenizer = tokenizer_for("bert", tmp_path)
    run_ranks(1, _write, "bert", "classification", {}, tokenizer, tmp_path / "checkpoints")
    checkpoint, exported = tmp_path / "checkpoints" / "step-00000000", tmp_path / "hf"
    assert "logits differ by" in run_ranks(1, _exports_flipped, checkpoint, exported)[0]
    assert not exported.exists()


def test_the_gate_sees_padding_that_is_the_end_of_text(tmp_path: Path) -> None:
    """Rows of a decoder end with the end of text, at which it answers, and the shorter one is padded."""
    tokenizer = tokenizer_for("gpt", tmp_path)
    run_ranks(1, _write, "gpt", "classification", {}, tokenizer, tmp_path / "checkpoints")
    checkpoint, exported = tmp_path / "checkpoints" / "step-00000000", tmp_path / "hf"
    assert "logits differ by" in run_ranks(1, _exports_with_the_end_as_padding, checkpoint, exported)[0]
    assert not exported.exists()


def test_folders_with_a_head_that_transformers_wrote_become_runs(tmp_path: Path) -> None:
    """Without `pad_token_id`, a decoder's class of transformers reads one row at a time; the gate reads several."""
    folders = {
        "bert": write("bert-classes", tmp_path / "bert"),
        "gpt2": write("gpt2-number", tmp_path / "gpt2"),
        "llama": write("llama-classes", tmp_path / "llama"),
    }
    assert read_json(folders["gpt2"] / "config.json").get("pad_token_id") is None
    changes = {
        "several": settings(problem_type="multi_label_classification"),
        "generator": settings(architectures=["ElectraForMultipleChoice"]),
        "shape": tensors(lambda values: values.update({"classifier.weight": values["classifier.weight"][:2].clone()})),
    }
    folders |= {name: changed(folders["bert"], tmp_path / name, change) for name, change in changes.items()}
    found = run_ranks(1, _imports, folders, tmp_path)[0]
    names = ["no", "maybe", "yes"]
    assert found["bert"][0] <= 1e-4
    assert found["bert"][1] == {"name": "classification", "labels": names, "format": "bert", "segments": True}
    assert found["gpt2"][0] <= 1e-4
    assert found["gpt2"][1]["name"] == "regression"
    assert found["llama"][0] <= 1e-4
    assert found["llama"][1]["labels"] == names
    assert "problem_type multi_label_classification is not known here" in found["several"]
    assert "ElectraForMultipleChoice has a head that is not known here; known are BertForSeq" in found["generator"]
    assert "classifier.weight is [2, 32], and config.json makes it [3, 32]" in found["shape"]
