"""Adapters of every kind that PEFT itself makes: imported with the logits that PEFT has of them, or refused by name."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretrain.errors import ConfigError
from tests.helpers.breadth import only
from tests.helpers.hf import read_json
from tests.helpers.hf_folders import write

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed: pip install -e .[dev]")

ROWS = 300
_PREFIX = "base_model.model."
_LAYER = f"{_PREFIX}model.layers.1.self_attn.o_proj"
_O = {"target_modules": ["o_proj"]}

# name -> base model, settings of PEFT's LoraConfig, and what an import says: None where it has PEFT's logits, with a
# finetune.lora and merged; "--merge" where it has them merged alone; else what the refusal says.
KINDS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "plain": ("untied", _O, None),
    "of a tied base": ("tied", _O, None),
    "rank-stabilised": ("untied", _O | {"use_rslora": True}, None),
    "gaussian": ("untied", _O | {"init_lora_weights": "gaussian"}, None),
    "EVA": ("untied", _O | {"init_lora_weights": "eva"}, None),
    "orthogonal": ("untied", _O | {"init_lora_weights": "orthogonal"}, None),
    "MiCA": ("untied", _O | {"init_lora_weights": "mica"}, None),
    "PiSSA": ("untied", _O | {"init_lora_weights": "pissa", "use_rslora": True}, None),
    "PiSSA of Conv1D": ("gpt2", {"target_modules": ["c_fc"], "init_lora_weights": "pissa"}, None),
    "PiSSA of the output layer, too": (
        "untied",
        {"target_modules": ["o_proj", "lm_head"], "init_lora_weights": "pissa"},
        "--merge",
    ),
    "OLoRA": ("tied", _O | {"init_lora_weights": "olora"}, None),
    "OLoRA of Conv1D": ("gpt2", {"target_modules": ["attn.c_proj"], "init_lora_weights": "olora"}, "has init_lora_"),
    "PiSSA of iterations": (
        "untied",
        _O | {"init_lora_weights": "pissa_niter_4"},
        "path_initial_model_for_weight_conv",
    ),
    "a regular expression": ("untied", {"target_modules": r".*\.o_proj"}, None),
    "all linear layers": ("untied", {"target_modules": "all-linear"}, "--merge"),
    "a layer of its own": ("untied", _O | {"layers_to_transform": [1]}, "--merge"),
    "without a layer": ("untied", _O | {"exclude_modules": r".*\.0\..*"}, "--merge"),
    "the output layer": ("untied", {"target_modules": ["o_proj", "lm_head"]}, "--merge"),
    "the output layer of a tied base": ("tied", {"target_modules": ["o_proj", "lm_head"]}, "--merge"),
    "the output layer of GPT-2": ("gpt2", {"target_modules": ["lm_head"]}, "--merge"),
    "the embedding": ("untied", {"target_modules": ["embed_tokens"]}, "--merge"),
    "the embedding of a tied base": ("tied", {"target_modules": ["o_proj", "embed_tokens"]}, "--merge"),
    "both, kept tied": ("tied", {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}, "--merge"),
    "a saved embedding": ("untied", _O | {"modules_to_save": ["embed_tokens"]}, None),
    "a saved embedding of a tied base": ("tied", _O | {"modules_to_save": ["embed_tokens"]}, None),
    "a saved head of a tied base": ("tied", _O | {"modules_to_save": ["lm_head"]}, None),
    "both saved": ("untied", _O | {"modules_to_save": ["embed_tokens", "lm_head"]}, None),
    "both saved of a tied base": ("tied", _O | {"modules_to_save": ["embed_tokens", "lm_head"]}, None),
    "both saved and kept tied": ("tied", _O | {"modules_to_save": ["lm_head"], "ensure_weight_tying": True}, None),
    "both saved of GPT-2": ("gpt2", {"target_modules": ["c_fc"], "modules_to_save": ["wte", "lm_head"]}, None),
    "an embedding of BERT": ("bert", {"target_modules": ["query"], "modules_to_save": ["word_embeddings"]}, "are one"),
    "rows of the embedding": ("untied", _O | {"trainable_token_indices": [7, 2]}, None),
    "rows of a tied base": ("tied", _O | {"trainable_token_indices": {"embed_tokens": [7, 2]}}, None),
    "a grown vocabulary": ("untied", _O, None),
    "a grown vocabulary of a tied base": ("tied", _O, None),
    "a grown vocabulary, both saved": ("tied", _O | {"modules_to_save": ["embed_tokens", "lm_head"]}, None),
    "a grown vocabulary, of new rows": ("tied", _O | {"trainable_token_indices": [300, 301]}, None),
    "a grown vocabulary without tokenizer": ("untied", _O, "the vocabulary was resized"),
    "DoRA": ("untied", _O | {"use_dora": True}, "has use_dora=True, which is not known here"),
    "aLoRA": ("untied", _O | {"alora_invocation_tokens": [5, 6]}, "has alora_invocation_tokens=[5, 6]"),
    "trained biases": ("gpt2", {"target_modules": ["c_fc"], "bias": "lora_only"}, 'has bias="lora_only"'),
    "biases of B": ("gpt2", {"target_modules": ["c_fc"], "lora_bias": True}, "has lora_bias=True"),
    "ranks of layers": ("untied", _O | {"rank_pattern": {"0.self_attn.o_proj": 2}}, "has rank_pattern="),
    "repeated layers": (
        "untied",
        _O | {"layer_replication": [(0, 2), (0, 2)]},
        "has layer_replication=[[0, 2], [0, 2]]",
    ),
}

QUICK = [name for name, (base, _, expected) in KINDS.items() if base != "untied" or expected != "--merge"]
QUICK = [name for name in QUICK if name not in ("gaussian", "EVA", "orthogonal", "a saved embedding", "both saved")]


# transformers takes seconds to import: only where it is needed.


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import transformers as hf

    root = tmp_path_factory.mktemp("bases")
    found = {kind: write(kind, root / kind) for kind in ("gpt2", "bert")}
    for name in ("tied", "untied"):
        torch.manual_seed(0)
        size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        described = hf.LlamaConfig(
            vocab_size=ROWS, max_position_embeddings=40, tie_word_embeddings=name == "tied", **size
        )
        model = hf.LlamaForCausalLM(described)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, mean=0.02, std=0.1)
        found[name] = root / name
        model.save_pretrained(found[name])
        (found[name] / "tokenizer.json").write_bytes((found["gpt2"] / "tokenizer.json").read_bytes())
    return found


@cache
def _loaded(base: Path) -> Any:
    import transformers as hf

    kind = hf.AutoModelForMaskedLM if base.name == "bert" else hf.AutoModelForCausalLM
    return kind.from_pretrained(base, dtype=torch.float32)


def _model(base: Path, rows: int = ROWS) -> Any:
    """What transformers makes of the base model, with as many rows of the vocabulary."""
    hf_model = deepcopy(_loaded(base))
    if rows != ROWS:
        hf_model.resize_token_embeddings(rows, mean_resizing=False)
    return hf_model


def _make(base: Path, directory: Path, settings: dict[str, Any], rows: int) -> None:
    """An adapter as PEFT writes it, with random values in all that it trains."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(5)
    task = {} if base.name == "bert" else {"task_type": "CAUSAL_LM"}
    model = get_peft_model(_model(base, rows), LoraConfig(r=4, lora_alpha=6, **task, **settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(directory)


def _logits(hf_model: Any) -> torch.Tensor:
    with torch.no_grad():
        return hf_model.eval()(torch.arange(12)[None]).logits  # type: ignore[no-any-return]


def _unpacked(base: Path, adapter: Path, out: Path, merge: bool) -> Any:
    """What an import makes of an adapter, the model of transformers in its folder, and warnings."""
    import transformers as hf

    from pretrain.interop.hf.folder import read
    from pretrain.interop.hf.imports import read_config
    from pretrain.interop.peft.unpack import unpack_adapter

    said: list[str] = []
    updates = unpack_adapter(adapter, base, out / "folder", out / "run", merge=merge, warn=said.append)
    config = updates.config_with_updates(read_config(out / "folder", out / "run"), out / "folder")
    assert (config.finetune.lora is None) == merge
    assert len(list(updates.matrices(read(out / "folder").family, config.model))) == (0 if merge else 4)
    hf_model = hf.AutoModelForCausalLM.from_pretrained(out / "folder", dtype=torch.float32)
    assert hf_model.config.tie_word_embeddings == config.model.tie_word_embeddings
    assert len(hf_model.get_input_embeddings().weight) == config.model.vocabulary
    return updates, hf_model, said


@pytest.mark.filterwarnings("ignore")  # PEFT's, of ends that are tied
@pytest.mark.parametrize("name", only(QUICK, KINDS))
def test_an_import_has_the_logits_of_peft_or_is_refused(name: str, bases: dict[str, Path], tmp_path: Path) -> None:
    from peft import PeftModel

    kind, settings, expected = KINDS[name]
    base, adapter = bases[kind], tmp_path / "adapter"
    rows = ROWS + 4 * name.startswith("a grown vocabulary")
    _make(base, adapter, settings, rows)
    if rows != ROWS and "without tokenizer" not in name:
        (adapter / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    if expected is not None:
        with pytest.raises(ConfigError) as error:
            _unpacked(base, adapter, tmp_path / "refused", merge=False)
        assert expected in str(error.value)
        if expected != "--merge":
            return
    logits = _logits(PeftModel.from_pretrained(_model(base, rows), adapter))
    assert (logits - _logits(_model(base, rows))).abs().max() > 0.01
    for merge in (False, True)[expected == "--merge" :]:
        updates, hf_model, _ = _unpacked(base, adapter, tmp_path / str(merge), merge)
        replace(updates.adapter, saved={}).apply(hf_model)
        assert (_logits(hf_model) - logits).abs().max() <= 1e-5
    theirs, made_by = updates.compared_with(hf_model)
    assert made_by == "PEFT"
    assert (_logits(theirs) - logits).abs().max() <= 1e-5  # eager attention


def _of(base: Path, directory: Path, **settings: Any) -> Path:
    _make(base, directory, _O | settings, ROWS)
    return directory


@pytest.mark.filterwarnings("ignore")
def test_without_peft_the_gate_says_that_it_reads_the_adapter_itself(
    bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import PeftModel

    from pretrain.interop.hf.gate import Agreement
    from pretrain.interop.peft import gate as peft_gate

    adapter = _of(bases["tied"], tmp_path / "adapter", modules_to_save=["lm_head"], init_lora_weights="olora")
    logits = _logits(PeftModel.from_pretrained(_model(bases["tied"]), adapter))
    monkeypatch.setattr(peft_gate, "find_spec", lambda name: None)
    updates, hf_model, said = _unpacked(bases["tied"], adapter, tmp_path / "out", merge=False)
    theirs, made_by = updates.compared_with(hf_model)
    assert theirs is hf_model
    assert (_logits(theirs) - logits).abs().max() <= 1e-5
    line = str(Agreement(difference=1e-6, limit=1e-4, reference=made_by))
    assert (
        line
        == "largest logit difference from this project's own reading of the adapter (peft is not installed) 1.00e-06"
    )
    assert "has init_lora_weights=olora: the base model's weights are less what" in said[0]
    assert "has one tensor for model.embed_tokens.weight and lm_head.weight, and the adapter another" in said[1]


@pytest.mark.filterwarnings("ignore")
def test_the_way_out_of_an_initialization_that_is_refused_leads_to_an_import(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model

    base, initial, adapter = bases["untied"], tmp_path / "initial", tmp_path / "adapter"
    settings = LoraConfig(r=4, lora_alpha=6, task_type="CAUSAL_LM", init_lora_weights="pissa_niter_4", **_O)
    model = get_peft_model(_model(base), settings)
    model.save_pretrained(initial)
    with torch.no_grad():
        for parameter in (x for x in model.parameters() if x.requires_grad):
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(adapter, path_initial_model_for_weight_conversion=initial)
    updates, hf_model, _ = _unpacked(base, adapter, tmp_path / "out", merge=False)
    replace(updates.adapter, saved={}).apply(hf_model)
    assert (_logits(hf_model) - _logits(model)).abs().max() <= 1e-5


def test_tokens_that_an_adapter_was_trained_with_come_with_it(bases: dict[str, Path], tmp_path: Path) -> None:
    adapter = _of(bases["untied"], tmp_path / "adapter")
    tree = read_json(bases["untied"] / "tokenizer.json")
    (adapter / "tokenizer.json").write_text(json.dumps(tree))
    for added, its_own in ([], False), ([tree["added_tokens"][0] | {"id": 270, "content": "<|im_end|>"}], True):
        (adapter / "tokenizer.json").write_text(json.dumps(tree | {"added_tokens": tree["added_tokens"] + added}))
        out = tmp_path / str(its_own)
        _, _, said = _unpacked(bases["untied"], adapter, out, merge=False)
        origin = adapter if its_own else bases["untied"]
        assert (out / "folder" / "tokenizer.json").read_bytes() == (origin / "tokenizer.json").read_bytes()
        assert ("the run has the adapter's tokenizer" in "".join(said)) == its_own
    settings = {"tokenizer_class": "TokenizersBackend", "eos_token": "<|im_end|>", "chat_template": "{{ messages }}"}
    (adapter / "tokenizer_config.json").write_text(json.dumps(settings))
    _, _, said = _unpacked(bases["untied"], adapter, tmp_path / "settings", merge=False)
    assert read_json(tmp_path / "settings" / "folder" / "tokenizer_config.json") == settings
    assert "has another eos_token and chat_template than " in "".join(said)


def _compared(base: Path, adapter: Path, out: Path) -> None:
    updates, hf_model, _ = _unpacked(base, adapter, out, merge=True)
    updates.compared_with(hf_model)


DAMAGE: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "a saved module that is gone": (
        lambda t: t.pop(f"{_PREFIX}lm_head.weight"),
        "has no lm_head.weight, which modules_",
    ),
    "an update of another layer": (
        lambda t: t.update({name.replace("o_proj", "q_proj"): t[name].clone() for name in list(t) if "o_pr" in name}),
        "self_attn.q_proj, which target_modules, exclude_modules and layers_to_transform of ",
    ),
    "an A without B": (lambda t: t.pop(f"{_LAYER}.lora_B.weight"), "has no B beside it that fits r=4"),
    "an infinite value": (lambda t: t[f"{_LAYER}.lora_B.weight"].fill_(torch.inf), "no finite numbers"),
    "a layer that is gone": (
        lambda t: [t.pop(f"{_LAYER}.lora_{matrix}.weight") for matrix in "AB"],
        "is not complete, as PEFT says",
    ),
}


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_adapter_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    from pretrain.interop.peft.weights import WEIGHTS

    adapter = _of(bases["untied"], tmp_path / "adapter", modules_to_save=["lm_head"])
    whole = load_file(adapter / WEIGHTS)
    for name, (damage, expected) in DAMAGE.items():
        tensors = {key: value.clone() for key, value in whole.items()}
        damage(tensors)
        save_file(tensors, adapter / WEIGHTS, {"format": "pt"})
        with pytest.raises(ConfigError) as error:
            _compared(bases["untied"], adapter, tmp_path / name)
        assert expected in str(error.value), name
    (adapter / WEIGHTS).rename(adapter / "adapter_model.bin")
    with pytest.raises(ConfigError, match=r"adapter_model.bin is a pickle, which is a program"):
        _unpacked(bases["untied"], adapter, tmp_path / "pickle", merge=True)
