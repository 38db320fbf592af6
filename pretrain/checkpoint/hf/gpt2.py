"""Our GPT as Hugging Face's GPT-2: names, shapes and the one reordering (query, key and value of each head lie together
here, and apart there)."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import GPT2Config

from pretrain.config.schema import Model
from pretrain.errors import ConfigError

_NORMS = {"ln_1": "input_layernorm", "ln_2": "pre_mlp_layernorm"}
_PROJECTIONS = {
    "attn.c_attn": "self_attention.linear_qkv",
    "attn.c_proj": "self_attention.linear_proj",
    "mlp.c_fc": "mlp.linear_fc1",
    "mlp.c_proj": "mlp.linear_fc2",
}


def hf_config(model: Model, end_of_text: int) -> GPT2Config:
    """Every field stated: class defaults are not relied on. Raises ConfigError for a model GPT-2 cannot express."""
    if model.norm != "pre":
        raise ConfigError("Hugging Face's GPT-2 is pre-norm: a model with model.norm=post cannot be exported to it")
    if set(model.attention.pattern) != {"dense"}:
        raise ConfigError(
            f"Hugging Face's GPT-2 has dense attention only: model.attention.pattern={model.attention.pattern} "
            "cannot be exported to it"
        )
    if model.head_width * model.heads != model.hidden:
        raise ConfigError("Hugging Face's GPT-2 needs heads * head_dim = hidden: this model cannot be exported to it")
    return GPT2Config(
        vocab_size=model.vocabulary,
        n_positions=model.sequence_length,
        n_embd=model.hidden,
        n_layer=model.layers,
        n_head=model.heads,
        n_inner=model.ffn_width,
        activation_function="gelu_new",
        resid_pdrop=model.dropout,
        embd_pdrop=model.dropout,
        attn_pdrop=model.attention_dropout,
        layer_norm_epsilon=model.norm_eps,
        initializer_range=model.init_std,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        tie_word_embeddings=model.tied_head,
        architectures=["GPT2LMHeadModel"],
    )


def hf_tensors(model: Model, ours: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, tensor) for each of our whole tensors."""
    vocabulary = model.vocabulary
    yield "transformer.wte.weight", ours["embedding.word_embeddings.weight"][:vocabulary]
    yield "transformer.wpe.weight", ours["embedding.position_embeddings.weight"]
    for layer in range(model.layers):
        for theirs, name in _NORMS.items():
            for leaf in ("weight", "bias"):
                yield f"transformer.h.{layer}.{theirs}.{leaf}", ours[f"decoder.layers.{layer}.{name}.{leaf}"]
        for theirs, name in _PROJECTIONS.items():
            weight, bias = (ours[f"decoder.layers.{layer}.{name}.{leaf}"] for leaf in ("weight", "bias"))
            if theirs == "attn.c_attn":
                weight, bias = _apart(weight, model), _apart(bias, model)
            yield f"transformer.h.{layer}.{theirs}.weight", weight.T  # Conv1D keeps [in, out]
            yield f"transformer.h.{layer}.{theirs}.bias", bias
    for leaf in ("weight", "bias"):
        yield f"transformer.ln_f.{leaf}", ours[f"decoder.final_layernorm.{leaf}"]
    if not model.tied_head:
        yield "lm_head.weight", ours["output_layer.weight"][:vocabulary]


def _apart(fused: Tensor, model: Model) -> Tensor:
    """[heads * (q, k, v), ...] -> [(q of all heads, k, v), ...]."""
    by_head = fused.view(model.heads, 3, model.head_width, *fused.shape[1:])
    return torch.cat([by_head[:, part].flatten(0, 1) for part in range(3)])
