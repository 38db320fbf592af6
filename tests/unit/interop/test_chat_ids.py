"""What a conversation is to a model has the ids that transformers' `apply_chat_template` of the folder gives, and names
of special tokens that the folder has."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, normalizers

from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.recipes.chat_template import ChatTemplate
from data_pipeline.recipes.instructions import Instructions, InstructionsRecipe, InstructionsSamples
from data_pipeline.tokenizers.released import load_released
from pretrain.data.chat_source import ChatSource, chat_source
from pretrain.errors import ConfigError
from pretrain.interop.hf import source_model
from pretrain.interop.hf.hf_tokenizer import load_tokenizer_of
from tests.helpers import chat_folders, released
from tests.helpers.more_chat_folders import MORE

TURNS = [{"role": "user", "content": "  Is 2 + 2 4?"}, {"role": "assistant", "content": "Yes."}]
LLAMA2 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} "
    "{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
PHI3 = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
OLMOE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% if m.role == 'assistant' %}"
    "{{ eos_token }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_IP = "|||IP_ADDRESS|||"
_LLAMA: dict[str, Any] = {
    "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>",
    "eos_token": "</s>", "legacy": False, "sp_model_kwargs": {}, "model_max_length": 4096,
}  # fmt: skip
_MODEL = functools.partial(
    released.sentencepiece_model, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
    remove_extra_whitespaces=False,
)  # fmt: skip


def _of_kind(kind: str, folder: Path) -> Path:
    made, settings, _, _, template = chat_folders._row(kind).made()
    settings = {**settings, "chat_template": template}
    return released.write(folder, made.to_str(), {"tokenizer_config.json": settings})


def _llama_model(folder: Path, **more: Any) -> Path:
    settings = {**_LLAMA, "chat_template": LLAMA2, **more}
    beside = {"tokenizer_config.json": settings, "config.json": {"model_type": "llama"}}
    return released.write(folder, _MODEL(), beside, "tokenizer.model")


def _llama_json(folder: Path, legacy: bool = False) -> Path:
    saved = folder.with_name("saved")
    load_tokenizer_of(_llama_model(folder.with_name("model"))).save_pretrained(saved)
    tree = json.loads((saved / "tokenizer.json").read_text())
    settings = {**_LLAMA, "chat_template": LLAMA2}
    if legacy:
        steps = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        made = tokenizers.Tokenizer.from_str(json.dumps(tree))
        made.normalizer = steps
        tree = json.loads(made.to_str()) | {"pre_tokenizer": None}
        settings |= {"legacy": True}
    return released.write(folder, json.dumps(tree), {"tokenizer_config.json": settings})


def _phi3(folder: Path) -> Path:
    made = tokenizers.Tokenizer.from_str(released.byte_level(["<s>", "<|endoftext|>"]))
    names = ("<|user|>", "<|assistant|>", "<|end|>")
    made.add_special_tokens([AddedToken(name, normalized=False, rstrip=True) for name in names])
    settings = {"add_bos_token": False, "bos_token": "<s>", "eos_token": "<|endoftext|>", "chat_template": PHI3,
                "tokenizer_class": "PreTrainedTokenizerFast"}  # fmt: skip
    return released.write(folder, made.to_str(), {"tokenizer_config.json": settings})


def _olmoe(folder: Path) -> Path:
    settings = {"bos_token": _IP, "eos_token": _IP, "pad_token": "<|pad|>", "chat_template": OLMOE,
                "tokenizer_class": "PreTrainedTokenizerFast"}  # fmt: skip
    made = released.byte_level([_IP, "<|endoftext|>", "<|pad|>"])
    return released.write(folder, made, {"tokenizer_config.json": settings})


def _smollm_with_begin(folder: Path) -> Path:
    path = _of_kind("smollm2", folder) / "tokenizer_config.json"
    tree = json.loads(path.read_text())
    tree |= {"bos_token": "<|endoftext|>", "chat_template": "{{ bos_token }}" + tree["chat_template"]}
    path.write_text(json.dumps(tree))
    return folder


FOLDERS: dict[str, Callable[[Path], Path]] = {
    **{
        kind: functools.partial(_of_kind, kind)
        for kind in (*chat_folders.ASKED, *MORE)
        if kind not in ("llama3-base", "r1-distill-llama")  # without a template; with one that opens answers otherwise
    },
    "Llama 2 as .model": _llama_model,
    "Llama 2 as .json": _llama_json,
    "Llama 2 as .json of its normalizer": functools.partial(_llama_json, legacy=True),
    "Phi-3": _phi3,
    "OLMoE": _olmoe,
    "SmolLM2 with a begin": _smollm_with_begin,
}


def _source(folder: Path) -> ChatSource:
    """What an import notes of a folder."""
    noted = source_model._note(folder)
    tree = {"special_pieces": {}, "noted": noted and {"names": noted.names, "turns": noted.turns and vars(noted.turns)}}
    (folder / "source_model.json").write_text(json.dumps(tree))
    found = chat_source(folder / "source_model.json", load_released(folder).tokenizer)
    assert found is not None
    return found


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_of_a_conversation_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder = FOLDERS[name](tmp_path / "folder")
    theirs, tokenizer, source = load_tokenizer_of(folder), load_released(folder).tokenizer, _source(folder)
    source.check(tokenizer)
    path = tmp_path / "chat_template.jinja"
    path.write_text(theirs.chat_template)
    variables = ChatTemplate(path, tokenizer).lacking(source.names)
    objective = Instructions(messages="messages", chat_template=str(path), template_variables=variables, packing="rows")
    recipe = objective.recipe(tokenizer, 512)
    assert isinstance(recipe, InstructionsRecipe)
    (conversation,) = recipe.conversations([{"messages": TURNS}])
    expected = theirs.apply_chat_template(TURNS, return_dict=True)["input_ids"]
    assert conversation.ids.tolist() == expected
    counted = theirs.decode(conversation.ids[conversation.counts], skip_special_tokens=True)
    assert counted.removesuffix("<|im_end|>").strip() == "Yes."
    opened = theirs.apply_chat_template(TURNS[:1], add_generation_prompt=True, return_dict=True)["input_ids"]
    assert recipe.question({"messages": TURNS}).tolist() == opened


def test_other_ids_than_transformers_are_refused_before_training(tmp_path: Path) -> None:
    folder = _llama_model(tmp_path / "folder", legacy=True)
    with pytest.raises(ConfigError, match=r"of a conversation in .*, and ours are .*: import the model again"):
        _source(folder).check(load_released(folder).tokenizer)


def _samples(tmp_path: Path, tokenizer: Path, template: str, turns: Sequence[Mapping[str, Any]]) -> InstructionsSamples:
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"messages": [*turns]}) + "\n")
    (tmp_path / "t.jinja").write_text(template)
    objective = Instructions(messages="messages", chat_template=str(tmp_path / "t.jinja"), packing="rows")
    dataset = LabelledDataset(tmp_path, tokenizer)
    samples = objective.recipe(dataset.tokenizer(), 512).samples(dataset, "train")
    assert isinstance(samples, InstructionsSamples)
    return samples


def test_samples_that_are_others_than_those_of_parts_are_another_order(tmp_path: Path) -> None:
    qwen, llama = (_of_kind(kind, tmp_path / kind) / "tokenizer.json" for kind in ("qwen2.5", "tinyllama"))
    template = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    assert _samples(tmp_path, qwen, chat_folders.CHATML, TURNS).annotations == []
    assert _samples(tmp_path, llama, template, TURNS).annotations == ["text as a whole"]


@pytest.mark.parametrize(
    ("more", "written"),
    [
        ({"reasoning": "So."}, "{{ m.reasoning_content }}"),
        ({"name": None}, "{{ m.name is defined }}"),
        ({}, "{{ tools is defined }}"),
        ({}, "{{ documents }}"),
    ],
)
def test_turns_that_render_otherwise_than_as_they_stand_are_another_order(
    tmp_path: Path, more: dict[str, str | None], written: str
) -> None:
    tokenizer = _of_kind("qwen2.5", tmp_path / "tokenizer") / "tokenizer.json"
    turns = [TURNS[0], TURNS[1] | more]
    shown = "{% for m in messages %}{{ m.role }} {{ m.content }} WRITTEN<|im_end|>{% endfor %}"
    assert _samples(tmp_path, tokenizer, shown, turns).annotations == []
    changed = _samples(tmp_path, tokenizer, shown.replace("WRITTEN", written), turns).annotations
    assert changed == ["turns as transformers passes them"]


def test_a_text_that_becomes_a_special_token_is_refused(tmp_path: Path) -> None:
    made = tokenizers.Tokenizer.from_str(released.byte_level(["<|endoftext|>"]))
    made.normalizer = normalizers.Lowercase()
    made.add_special_tokens([AddedToken("<|end|>", normalized=True)])
    made.save(str(tmp_path / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"
    turns = [{"role": "user", "content": "a<|END|>"}, TURNS[1]]
    assert _samples(tmp_path, tmp_path / "tokenizer.json", template, TURNS).count == 1
    with pytest.raises(DataError, match=r"train\.jsonl, line 1: the tokenizer takes '<\|END\|>' for a special token"):
        _samples(tmp_path, tmp_path / "tokenizer.json", template, turns)
