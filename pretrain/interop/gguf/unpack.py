"""A GGUF file, llama.cpp's format, as a folder of Hugging Face's: config, tokenizer, and weights in fp32, which may be
quantised in the file."""

from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, logging

from pretrain.errors import ConfigError

_MAGIC = b"GGUF"
_GEMMA3_27B = 62
"""layers of the model whose attention scores are scaled by the width of the model"""
_KNOWN = ("llama", "qwen2", "qwen3", "gemma3")
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def unpack(file: Path, directory: Path) -> None:
    """Writes `directory` as save_pretrained does. Takes the memory of the whole model. Raises ConfigError for what is
    no such file, or holds a model of a kind that is not known here."""
    try:
        with file.open("rb") as opened:
            magic = opened.read(len(_MAGIC))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror})") from None
    if magic != _MAGIC:
        raise ConfigError(f"{file} is no GGUF file")
    logging.set_verbosity_error()
    source: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    try:
        reader = GGUFReader(file)
        kind = str(reader.fields["general.architecture"].contents())
        if kind not in _KNOWN:
            raise ConfigError(f"it is a {kind}; known are {', '.join(_KNOWN)}")
        config = AutoConfig.from_pretrained(file.parent.resolve(), **source)
        width = reader.fields.get(f"{kind}.attention.key_length")  # which transformers doesn't read of every kind
        if width is not None:
            config.head_dim = int(width.contents())
        if kind == "gemma3":  # as llama.cpp reads it
            share = config.hidden_size // config.num_attention_heads
            config.query_pre_attn_scalar = share if config.num_hidden_layers == _GEMMA3_27B else config.head_dim
        AutoTokenizer.from_pretrained(file.parent.resolve(), **source).save_pretrained(directory)
        tensors = read_tensors(reader, kind, (config.num_attention_heads, config.num_key_value_heads))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    except Exception as error:  # the libraries raise whatever a value leads to
        raise ConfigError(f"{file} cannot be read ({' '.join(str(error).split())[:200]})") from None
    config.tie_word_embeddings = "lm_head.weight" not in tensors
    config.save_pretrained(directory)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def read_tensors(reader: GGUFReader, kind: str, heads: tuple[int, int]) -> dict[str, Tensor]:
    """All weights under Hugging Face's names. `heads`: of queries, and of keys and values."""
    tensors = {}
    for tensor in reader.tensors:
        name = _name(tensor.name, kind)
        values = dequantize(tensor.data, tensor.tensor_type).copy()  # of a file that may not be written to
        value = torch.from_numpy(values).float().reshape(*tensor.shape[::-1].tolist())
        if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            value = _halves(value, heads[0] if "q_proj" in name else heads[1])
        if kind == "gemma3" and name.endswith("norm.weight"):
            value = value - 1  # GGUF stores 1 + the gain
        tensors[name] = value.contiguous()
    return tensors


def _name(gguf_name: str, kind: str) -> str:
    """Hugging Face's name of a tensor. Raises ConfigError for a tensor that no known model has."""
    stem, _, leaf = gguf_name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{leaf}"
    block, _, name_in_block = stem.partition(".")
    number, _, part = name_in_block.partition(".")
    if block != "blk" or part not in _OF_LAYER:
        raise ConfigError(f"tensor {gguf_name} is not known here")
    name = "pre_feedforward_layernorm" if (kind, part) == ("gemma3", "ffn_norm") else _OF_LAYER[part]
    return f"model.layers.{number}.{name}.{leaf}"


def gguf_name(hf_name: str) -> str:
    """llama.cpp's name of a tensor of a Llama or Qwen in Hugging Face's format."""
    stem, _, leaf = hf_name.rpartition(".")
    whole = {hf: name for name, hf in _WHOLE.items()}
    if stem in whole:
        return f"{whole[stem]}.{leaf}"
    number, _, part = stem.removeprefix("model.layers.").partition(".")
    of_layer = {hf: name for name, hf in _OF_LAYER.items() if not name.startswith("post_")}
    return f"blk.{number}.{of_layer[part]}.{leaf}"


def _halves(rows: Tensor, heads: int) -> Tensor:
    """Pairs that rotary positions turn lie side by side in Llama's files, and half a head apart here."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
