"""Folders of instruct models as they are released, key for key, of models small enough for a test: Llama 3, Qwen 2.5,
SmolLM2, Gemma 2, Mistral 0.3, and those of `more_chat_folders.py`. Ids of special tokens are those of a small
vocabulary."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.helpers.datasets import make_documents

SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
_DIGITS = r"\p{N}"
LLAMA3_DIGITS = r"\p{N}{1,3}"
_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML = (
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role != 'system' %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n"
)
_LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | "
    "trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
_MISTRAL = (
    "{{- bos_token }}{%- for message in messages %}{%- if message['role'] == 'user' %}{{- '[INST] ' + "
    "message['content'] + '[/INST]' }}{%- elif message['role'] == 'assistant' %}{{- ' ' + message['content'] | trim + "
    "eos_token}}{%- endif %}{%- endfor %}\n"
)
ASKED = ("qwen2.5", "smollm2", "gemma2", "mistral", "llama3")
"""folders that this file has"""


@dataclass(frozen=True)
class Released:
    """How a folder is made."""

    made: Callable[[], Any]
    """tokenizer, tokenizer_config.json, special_tokens_map.json, generation_config.json, and chat template"""
    config: Callable[[Any], Any]
    """config of the module transformers, without a vocabulary"""
    ids: dict[str, Any]
    """names of the tokens whose ids config.json has, by its keys"""
    keys: dict[str, Any] = field(default_factory=dict)
    """more keys of config.json"""


def byte_level(names: list[str], first: bool, *, digits: str | None = _DIGITS) -> tokenizers.Tokenizer:
    """A tokenizer.json of byte-level BPE, as GPT-4's (GPT-2's without `digits`), with these special tokens `first` or
    last."""
    made = tokenizers.Tokenizer(models.BPE())
    if digits is None:
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    else:
        split = pre_tokenizers.Split(Regex(_GPT4.replace("DIGITS", digits)), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300 + len(names) * first,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=names if first else [],
        show_progress=False,
    )
    made.train_from_iterator(make_documents(0, 60), trainer)
    made.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


def with_bytes(names: list[str], first: bool) -> tokenizers.Tokenizer:
    """A tokenizer.json made of a sentencepiece model of kind bpe, with these special tokens at its beginning."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trained.train_from_iterator(make_documents(0, 60), trainers.BpeTrainer(vocab_size=120, show_progress=False))
    tree = json.loads(trained.to_str())["model"]
    pieces = [*names, *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(tree["vocab"], key=tree["vocab"].get)]
    merges = [tuple(pair) for pair in tree["merges"]]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    made = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if first:  # Mistral's
        made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first", split=False)
    else:
        made.normalizer = normalizers.Replace(" ", "\u2581")
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        + ([decoders.Strip(content=" ", left=1, right=0)] if first else [])
    )
    made.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    return made


def begun(made: tokenizers.Tokenizer, begin: str) -> tokenizers.Tokenizer:
    """With what puts this before each text."""
    template = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1", special_tokens=[(begin, made.token_to_id(begin))]
    )
    before = [] if made.post_processor is None else [made.post_processor]
    made.post_processor = processors.Sequence([*before, template]) if before else template
    return made


def write(kind: str, directory: Path) -> Path:
    """A folder of one of `FOLDERS`."""
    directory.mkdir(parents=True)
    made, settings, more, generation, template = _row(kind).made()
    ids = {name: index for name, index in made.get_vocab(with_added_tokens=True).items()}
    generation = {key: _ids(value, ids) if key.endswith("_id") else value for key, value in generation.items()}
    _write_model(kind, directory, ids, made.get_vocab_size())
    made.save(str(directory / "tokenizer.json"))
    decoder = {
        str(index): {
            "content": token.content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": token.special,
        }
        for index, token in sorted(made.get_added_tokens_decoder().items())
    }  # fmt: skip
    described = {"added_tokens_decoder": decoder, **settings}
    if template is not None:
        described["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(described, indent=2))
    (directory / "special_tokens_map.json").write_text(json.dumps(more, indent=2))
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2))
    return directory


def _row(kind: str) -> "Released":
    from tests.helpers.more_chat_folders import MORE

    return {**_RELEASED, **MORE}[kind]


def _ids(value: Any, ids: dict[str, int]) -> Any:
    return [ids[name] for name in value] if isinstance(value, list) else ids[value]


def _write_model(kind: str, directory: Path, ids: dict[str, int], vocabulary: int) -> None:
    import torch
    import transformers as hf

    torch.manual_seed(0)
    row = _row(kind)
    config: Any = row.config(hf)
    config.vocab_size = vocabulary
    for name, value in row.ids.items():
        setattr(config, name, None if value is None else _ids(value, ids))
    model = hf.AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    if any("experts" in name for name in model.state_dict()):  # which files have one by one
        model.save_pretrained(directory)
    else:
        config.save_pretrained(directory)
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        weights = {name: value.contiguous() for name, value in model.state_dict().items() if name not in tied}
        save_file(weights, directory / "model.safetensors", {"format": "pt"})  # save_pretrained imports much more
    path = directory / "config.json"
    tree = json.loads(path.read_text())
    tree["torch_dtype"] = "bfloat16"
    tree.pop("dtype", None)
    path.write_text(json.dumps(tree | row.keys, indent=2))


def token(name: str) -> dict[str, Any]:
    return {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


def _llama3() -> Any:
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
             "<|eot_id|>"]  # fmt: skip
    made = byte_level(names, False, digits=LLAMA3_DIGITS)
    tree = json.loads(made.to_str())
    tree["model"]["ignore_merges"] = True
    made = begun(tokenizers.Tokenizer.from_str(json.dumps(tree)), "<|begin_of_text|>")
    settings = {
        "bos_token": "<|begin_of_text|>", "clean_up_tokenization_spaces": True, "eos_token": "<|eot_id|>",
        "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 131072,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }  # fmt: skip
    generation = {
        "bos_token_id": "<|begin_of_text|>", "do_sample": True,
        "eos_token_id": ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"], "temperature": 0.6, "top_p": 0.9,
        "transformers_version": "4.42.3",
    }  # fmt: skip
    return made, settings, {"bos_token": token(names[0]), "eos_token": token(names[-1])}, generation, _LLAMA3


def _qwen() -> Any:
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>"]
    made = byte_level(names, False)
    made.normalizer = normalizers.NFC()
    made.add_tokens([AddedToken("<tool_call>", normalized=False, special=False)])
    settings = {
        "add_bos_token": False, "add_prefix_space": False, "additional_special_tokens": names[1:], "bos_token": None,
        "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }  # fmt: skip
    generation = {
        "bos_token_id": "<|endoftext|>", "pad_token_id": "<|endoftext|>", "do_sample": True,
        "eos_token_id": ["<|im_end|>", "<|endoftext|>"], "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8,
        "top_k": 20, "transformers_version": "4.37.0",
    }  # fmt: skip
    more = {"additional_special_tokens": names[1:], "eos_token": token(names[2]), "pad_token": token(names[0])}
    return made, settings, more, generation, CHATML


def _smollm() -> Any:
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>"]
    settings = {
        "add_prefix_space": False, "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": "<|im_start|>", "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
        "model_max_length": 8192, "pad_token": "<|im_end|>", "tokenizer_class": "GPT2Tokenizer",
        "unk_token": "<|endoftext|>", "vocab_size": 49152,
    }  # fmt: skip
    generation = {
        "_from_model_config": True, "bos_token_id": "<|im_start|>", "eos_token_id": "<|im_end|>",
        "pad_token_id": "<|im_end|>", "transformers_version": "4.42.3",
    }  # fmt: skip
    more = {
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": token("<|im_start|>"),
        "eos_token": token("<|im_end|>"), "pad_token": token("<|im_end|>"), "unk_token": token("<|endoftext|>"),
    }  # fmt: skip
    return byte_level(names, True, digits=None), settings, more, generation, CHATML


def _gemma() -> Any:
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    settings = {
        "add_bos_token": True, "add_eos_token": False, "additional_special_tokens": names[5:], "bos_token": "<bos>",
        "clean_up_tokenization_spaces": False, "eos_token": "<eos>", "model_max_length": 10**30, "pad_token": "<pad>",
        "sp_model_kwargs": {}, "spaces_between_special_tokens": False, "tokenizer_class": "GemmaTokenizer",
        "unk_token": "<unk>", "use_default_system_prompt": False,
    }  # fmt: skip
    generation = {
        "_from_model_config": True, "bos_token_id": "<bos>", "cache_implementation": "hybrid",
        "eos_token_id": ["<eos>", "<end_of_turn>"], "pad_token_id": "<pad>", "transformers_version": "4.42.0.dev0",
    }  # fmt: skip
    more = {
        "additional_special_tokens": names[5:], "bos_token": token("<bos>"), "eos_token": token("<eos>"),
        "pad_token": token("<pad>"), "unk_token": token("<unk>"),
    }  # fmt: skip
    return begun(with_bytes(names, False), "<bos>"), settings, more, generation, GEMMA


def _mistral() -> Any:
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    settings = {
        "add_bos_token": True, "add_eos_token": False, "add_prefix_space": None, "additional_special_tokens": [],
        "bos_token": "<s>", "clean_up_tokenization_spaces": False, "eos_token": "</s>", "legacy": False,
        "model_max_length": 10**30, "pad_token": None, "sp_model_kwargs": {}, "spaces_between_special_tokens": False,
        "tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", "use_default_system_prompt": False,
    }  # fmt: skip
    generation = {
        "_from_model_config": True, "bos_token_id": "<s>", "eos_token_id": "</s>", "transformers_version": "4.42.0.dev0"
    }  # fmt: skip
    more = {"bos_token": token("<s>"), "eos_token": token("</s>"), "unk_token": token("<unk>")}
    return begun(with_bytes(names, True), "<s>"), settings, more, generation, _MISTRAL


_RELEASED = {
    "llama3": Released(
        _llama3,
        lambda hf: hf.LlamaConfig(
            **SIZE, num_key_value_heads=1, max_position_embeddings=256, rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "high_freq_factor": 4.0,
                             "low_freq_factor": 1.0, "original_max_position_embeddings": 64},
        ),
        {"bos_token_id": "<|begin_of_text|>", "eos_token_id": ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
         "pad_token_id": None},
    ),
    "qwen2.5": Released(
        _qwen,
        lambda hf: hf.Qwen2Config(**SIZE, num_key_value_heads=1, max_position_embeddings=256, tie_word_embeddings=True,
                                  use_sliding_window=False),
        {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|im_end|>", "pad_token_id": None},
    ),
    "smollm2": Released(
        _smollm,
        lambda hf: hf.LlamaConfig(**SIZE, num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True),
        {"bos_token_id": "<|im_start|>", "eos_token_id": "<|im_end|>", "pad_token_id": "<|im_end|>"},
    ),
    "gemma2": Released(
        _gemma,
        lambda hf: hf.Gemma2Config(**SIZE, num_key_value_heads=1, max_position_embeddings=256, head_dim=16,
                                   query_pre_attn_scalar=16, sliding_window=64, attention_dropout=0.0),
        {"bos_token_id": "<bos>", "eos_token_id": "<eos>", "pad_token_id": "<pad>"},
    ),
    "mistral": Released(
        _mistral,
        lambda hf: hf.MistralConfig(**SIZE, num_key_value_heads=1, max_position_embeddings=256, sliding_window=None),
        {"bos_token_id": "<s>", "eos_token_id": "</s>", "pad_token_id": None},
    ),
}  # fmt: skip
