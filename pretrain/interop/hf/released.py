"""The config.json of a released folder as a class of transformers that is known here takes it, and what is to be said
of that. A folder says more than its weights need: code of its own, pictures, a type of 8 bits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pretrain.errors import ConfigError
from pretrain.interop.hf import fp8_blocks

_REFUSED = {
    "compression_config": "its weights are compressed; save it in fp32, fp16 or bf16",
    "transformers_weights": "it names another file of weights; remove it, with the weights in model.safetensors",
    "fusion_config": "it replaces layers of the model; remove it",
}
TEXT_TYPES = {"gemma3": ("gemma3_text", "Gemma3ForConditionalGeneration", "Gemma3ForCausalLM")}
"""`model_type` of models that read pictures, too -> that of the text model in it, and both classes"""
_OF_TEXT = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "lm_head.": "lm_head.",
}
"""prefixes of the names of the text model's tensors in such a folder, and in one of text alone"""


@dataclass(frozen=True)
class Released:
    """Contents of a config.json, without what is not read."""

    tree: dict[str, Any]
    is_fp8: bool = False
    """whether weights may be in 8 bits, with factors for blocks"""
    name_of: Callable[[str], str | None] | None = None
    """name of a tensor of the folder in the model's class; None: it is of another model. Absent: all are the same"""
    notes: tuple[str, ...] = ()
    """sentences for the user, who may expect something else"""


def read(tree: dict[str, Any]) -> Released:
    """Raises ConfigError, without the file's name, for what cannot be read as one of these models."""
    for key, why in _REFUSED.items():
        if tree.get(key):
            raise ConfigError(f"has {key}: {why}")
    tree, notes, name_of = dict(tree), list[str](), None
    if str(tree.get("model_type")) in TEXT_TYPES:
        tree, name_of = _text_model(tree), _name_in_text_model
        notes.append("it is a model of text and pictures: only its text model is imported")
    if tree.pop("auto_map", None):
        kind = tree.get("model_type")
        notes.append(f"its auto_map names code of its own, which is not run: it is read as transformers' {kind}")
    if _has_heads_of_another_size(tree):
        names = [name.replace("Llama", "Mistral") for name in tree.get("architectures") or ["LlamaForCausalLM"]]
        tree |= {"model_type": "mistral", "sliding_window": None, "architectures": names}
        notes.append(
            f"transformers' class of a llama takes no hidden_size {tree['hidden_size']} with num_attention_heads "
            f"{tree['num_attention_heads']}: it is read as a mistral without a window, which computes the same"
        )
    if settings := tree.pop("quantization_config", None):
        fp8_blocks.check_settings(settings)
        notes.append("its weights in fp8 with factors for blocks of 128 x 128 are dequantised")
    return Released(tree, bool(settings), name_of, tuple(notes))


def _has_heads_of_another_size(tree: dict[str, Any]) -> bool:
    """Whether it is a Llama whose heads have a size of their own, of which its width is no multiple (Kanana)."""
    width, heads = tree.get("hidden_size"), tree.get("num_attention_heads")
    if tree.get("model_type") != "llama" or not tree.get("head_dim"):
        return False
    return isinstance(width, int) and isinstance(heads, int) and heads > 0 and width % heads > 0


def _text_model(tree: dict[str, Any]) -> dict[str, Any]:
    """The part of a config.json that describes the text model, with what the whole has for both."""
    kind, known, text_class = TEXT_TYPES[tree["model_type"]]
    text = tree.get("text_config")
    if not isinstance(text, dict) or text.get("model_type", kind) != kind:
        raise ConfigError(f"has model_type {tree['model_type']} and no text_config of a {kind}")
    if (names := tree.get("architectures") or [known]) != [known]:
        raise ConfigError(f"has architectures {names}: of {tree['model_type']}, {known} is known here")
    of_both = (
        *("tie_word_embeddings", "auto_map", "quantization_config", "dtype", "torch_dtype"),
        *("bos_token_id", "eos_token_id", "pad_token_id"),
    )
    shared = {key: tree[key] for key in of_both if key in tree}
    return text | shared | {"model_type": kind, "architectures": [text_class]}


def _name_in_text_model(name: str) -> str | None:
    return next((new + name.removeprefix(old) for old, new in _OF_TEXT.items() if name.startswith(old)), None)
