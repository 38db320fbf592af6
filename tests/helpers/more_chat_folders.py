"""More rows for `chat_folders.py`: Qwen 3, Gemma 3, Mixtral, DeepSeek-V2-Lite, R1 distilled to Llama, TinyLlama, and
Llama 3 before it was an instruct model."""

from typing import Any

from tokenizers import AddedToken, normalizers

from tests.helpers.chat_folders import (
    CHATML,
    GEMMA,
    LLAMA3_DIGITS,
    SIZE,
    Released,
    begun,
    byte_level,
    token,
    with_bytes,
)

_BEGIN, _END = "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"
_USER, _ASSISTANT = "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"
_DEEPSEEK_V2 = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}"
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\n\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}{% elif "
    "message['role'] == 'system' %}{{ message['content'] + '\n\n' }}{% endif %}{% endfor %}{% if add_generation_prompt "
    "%}{{ 'Assistant:' }}{% endif %}"
)
_R1 = (
    "{{bos_token}}{%- for message in messages %}{%- if message['role'] == 'user' %}{{'" + _USER + "' + "
    "message['content']}}{%- elif message['role'] == 'assistant' %}{{'" + _ASSISTANT + "' + message['content'] + '"
    + _END + "'}}{%- endif %}{%- endfor -%}{% if add_generation_prompt %}{{'" + _ASSISTANT + "<think>\\n'}}{% endif %}"
)  # fmt: skip
_ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + "
    "eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}"
    "\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
_MIXTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ ' [INST] ' + "
    "message['content'] + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + ' ' + eos_token}}{% endif %}{% endfor %}"
)
_PLACES = {"max_position_embeddings": 256}


def _full(name: str) -> dict[str, Any]:
    """A token as tokenizer_config.json of earlier releases has it."""
    return {"__type": "AddedToken", **token(name), "normalized": True}


def _llama3_base() -> Any:
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    made = begun(byte_level(names, False, digits=LLAMA3_DIGITS), names[0])
    settings = {
        "bos_token": names[0], "clean_up_tokenization_spaces": True, "eos_token": names[1],
        "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 10**30,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }  # fmt: skip
    generation = {
        "_from_model_config": True, "bos_token_id": names[0], "do_sample": True, "eos_token_id": names[1],
        "max_length": 4096, "temperature": 0.6, "top_p": 0.9, "transformers_version": "4.40.0.dev0",
    }  # fmt: skip
    return made, settings, {"bos_token": token(names[0]), "eos_token": token(names[1])}, generation, None


def _qwen3() -> Any:
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>"]
    made = byte_level(names, False)
    made.normalizer = normalizers.NFC()
    made.add_tokens([AddedToken(name, normalized=False, special=False) for name in ("<think>", "</think>")])
    settings = {
        "add_bos_token": False, "add_prefix_space": False, "additional_special_tokens": names[1:], "bos_token": None,
        "clean_up_tokenization_spaces": False, "eos_token": names[2], "errors": "replace", "model_max_length": 131072,
        "pad_token": names[0], "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }  # fmt: skip
    generation = {
        "bos_token_id": names[0], "do_sample": True, "eos_token_id": [names[2], names[0]], "pad_token_id": names[0],
        "temperature": 0.6, "top_k": 20, "top_p": 0.95, "transformers_version": "4.51.0",
    }  # fmt: skip
    more = {"additional_special_tokens": names[1:], "eos_token": token(names[2]), "pad_token": token(names[0])}
    thinks = "{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}"
    template = CHATML + thinks + "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    return made, settings, more, generation, template


def _gemma3() -> Any:
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>"]
    settings = {
        "add_bos_token": True, "add_eos_token": False, "boi_token": names[7], "bos_token": "<bos>",
        "clean_up_tokenization_spaces": False, "eos_token": "<eos>", "extra_special_tokens": {"boi_token": names[7]},
        "model_max_length": 10**30, "pad_token": "<pad>", "processor_class": "Gemma3Processor", "sp_model_kwargs": None,
        "spaces_between_special_tokens": False, "tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>",
        "use_default_system_prompt": False,
    }  # fmt: skip
    generation = {
        "cache_implementation": "hybrid", "do_sample": True, "eos_token_id": ["<eos>", "<end_of_turn>"], "top_k": 64,
        "top_p": 0.95, "transformers_version": "4.50.0.dev0",
    }  # fmt: skip
    more = {
        "boi_token": names[7], "bos_token": token("<bos>"), "eos_token": token("<eos>"), "pad_token": token("<pad>"),
        "unk_token": token("<unk>"),
    }  # fmt: skip
    return begun(with_bytes(names, False), "<bos>"), settings, more, generation, GEMMA


def _sentencepieces(template: str, **settings: Any) -> Any:
    """Llama 2's tokenizer, as TinyLlama and Mixtral have it."""
    names = ["<unk>", "<s>", "</s>"]
    usual = {
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "clean_up_tokenization_spaces": False,
        "eos_token": "</s>", "legacy": False, "model_max_length": 2048, "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", "use_default_system_prompt": False,
    }  # fmt: skip
    generation = {"bos_token_id": "<s>", "eos_token_id": "</s>", "transformers_version": "4.35.0"}
    more = {"bos_token": token("<s>"), "eos_token": token("</s>"), "unk_token": token("<unk>")}
    if "pad_token" in settings:
        more["pad_token"] = token(settings["pad_token"])
        generation["pad_token_id"] = settings["pad_token"]
    return begun(with_bytes(names, True), "<s>"), usual | settings, more, generation, template


def _deepseek_v2() -> Any:
    settings = {
        "add_bos_token": True, "add_eos_token": False, "bos_token": _full(_BEGIN), "eos_token": _full(_END),
        "clean_up_tokenization_spaces": False, "legacy": True, "model_max_length": 16384, "pad_token": _full(_END),
        "sp_model_kwargs": {}, "unk_token": None, "tokenizer_class": "LlamaTokenizerFast",
    }  # fmt: skip
    generation = {
        "_from_model_config": True, "bos_token_id": _BEGIN, "eos_token_id": _END, "do_sample": True,
        "temperature": 0.3, "top_p": 0.95, "transformers_version": "4.39.3",
    }  # fmt: skip
    made = begun(byte_level([_BEGIN, _END], False), _BEGIN)
    return made, settings, {"bos_token": token(_BEGIN), "eos_token": token(_END)}, generation, _DEEPSEEK_V2


def _r1_distillate() -> Any:
    made = byte_level([_BEGIN, _END, _USER, _ASSISTANT], False, digits=LLAMA3_DIGITS)
    made.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    settings = {
        "add_bos_token": True, "add_eos_token": False, "bos_token": _full(_BEGIN), "eos_token": _full(_END),
        "clean_up_tokenization_spaces": False, "legacy": True, "model_max_length": 16384, "pad_token": _full(_END),
        "sp_model_kwargs": {}, "unk_token": None, "tokenizer_class": "LlamaTokenizerFast",
    }  # fmt: skip
    generation = {
        "_from_model_config": True, "bos_token_id": _BEGIN, "eos_token_id": _END, "do_sample": True,
        "temperature": 0.6, "top_p": 0.95, "transformers_version": "4.39.3",
    }  # fmt: skip
    return begun(made, _BEGIN), settings, {"bos_token": token(_BEGIN), "eos_token": token(_END)}, generation, _R1


MORE = {
    "llama3-base": Released(
        _llama3_base,
        lambda hf: hf.LlamaConfig(**SIZE, **_PLACES, num_key_value_heads=1, rms_norm_eps=1e-5),
        {"bos_token_id": "<|begin_of_text|>", "eos_token_id": "<|end_of_text|>"},
    ),
    "qwen3": Released(
        _qwen3,
        lambda hf: hf.Qwen3Config(**SIZE, **_PLACES, num_key_value_heads=1, head_dim=32, tie_word_embeddings=True),
        {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|im_end|>"},
    ),
    "gemma3": Released(
        _gemma3,
        lambda hf: hf.Gemma3TextConfig(**SIZE, **_PLACES, num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=16,
                                       sliding_window=64),
        {"bos_token_id": "<bos>", "eos_token_id": ["<eos>", "<end_of_turn>"], "pad_token_id": "<pad>"},
    ),
    "mixtral": Released(
        lambda: _sentencepieces(_MIXTRAL, additional_special_tokens=[], pad_token="<unk>"),
        lambda hf: hf.MixtralConfig(**SIZE, **_PLACES, num_key_value_heads=1, num_local_experts=2,
                                    num_experts_per_tok=1, sliding_window=None),
        {"bos_token_id": "<s>", "eos_token_id": "</s>"},
    ),
    "tinyllama": Released(
        lambda: _sentencepieces(_ZEPHYR, pad_token="</s>", padding_side="right"),
        lambda hf: hf.LlamaConfig(**SIZE, **_PLACES, num_key_value_heads=1, rms_norm_eps=1e-5),
        {"bos_token_id": "<s>", "eos_token_id": "</s>"},
    ),
    "deepseek-v2-lite": Released(
        _deepseek_v2,
        lambda hf: hf.DeepseekV2Config(
            **SIZE, **_PLACES, num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=8, qk_nope_head_dim=8,
            qk_rope_head_dim=4, v_head_dim=8, moe_intermediate_size=16, n_routed_experts=2, n_shared_experts=1,
            num_experts_per_tok=1, first_k_dense_replace=1, norm_topk_prob=False, topk_method="greedy", n_group=1,
            topk_group=1, routed_scaling_factor=1.0,
        ),
        {"bos_token_id": _BEGIN, "eos_token_id": _END},
        {"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config",
                      "AutoModel": "modeling_deepseek.DeepseekV2Model",
                      "AutoModelForCausalLM": "modeling_deepseek.DeepseekV2ForCausalLM"}},
    ),
    "r1-distill-llama": Released(
        _r1_distillate,
        lambda hf: hf.LlamaConfig(
            **SIZE, **_PLACES, num_key_value_heads=1, rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "high_freq_factor": 4.0,
                             "low_freq_factor": 1.0, "original_max_position_embeddings": 64},
        ),
        {"bos_token_id": _BEGIN, "eos_token_id": _END},
    ),
}  # fmt: skip
"""folders by name"""
