"""Gemma 2: norms on both sides of each sublayer, scaled embeddings, every second layer with a sliding window, and caps
of attention scores and of logits."""

from typing import Any

from transformers import Gemma2Config, Gemma2ForCausalLM

from data_pipeline.tokenizers.specials import Specials
from pretrain.checkpoint.hf import llama_kin
from pretrain.checkpoint.hf.llama_kin import HEADS, OBJECTIVE, activation, check_decoder, fields, links, section
from pretrain.config.model import Model
from pretrain.errors import ConfigError

__all__ = ["CLASS", "HEADS", "MODEL_TYPE", "OBJECTIVE", "hf_config", "links", "model_of", "refuse", "takes"]

CLASS, MODEL_TYPE = Gemma2ForCausalLM, "gemma2"
_ITS_OWN: dict[str, Any] = {"norm": "sandwich", "norm_type": "rms_zero_centered", "embedding_scale": True}


def takes(model: Model) -> bool:
    return model.norm == "sandwich" and not model.qk_norm


def hf_config(model: Model, specials: Specials) -> Gemma2Config:
    """Every field stated. Raises ConfigError for a model that Gemma 2 cannot express."""
    caps = {"final_logit_softcap": model.final_logit_softcap, "attention_logit_softcap": model.attention_logit_softcap}
    check_decoder(model, "Gemma 2", patterns=("dense", "banded"), **_ITS_OWN | caps)
    return Gemma2Config(
        **fields(model, specials), hidden_activation=activation(model), attention_bias=False,
        rope_parameters=llama_kin.rope(model), query_pre_attn_scalar=model.dim_per_head,
        sliding_window=next(iter(llama_kin.windows(model)), None), layer_types=llama_kin.layer_types(model),
        final_logit_softcapping=model.final_logit_softcap, attn_logit_softcapping=model.attention_logit_softcap,
        use_bidirectional_attention=False, architectures=[CLASS.__name__],
    )  # fmt: skip


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for parts that models of this family have not."""
    llama_kin.refuse({**tree, "attn_logit_softcapping": None}, most_layers)
    scale, width = tree.get("query_pre_attn_scalar", 256), tree.get("head_dim", 256)
    if scale != width:
        raise ConfigError(f"query_pre_attn_scalar {scale} is not known here where it is not head_dim, {width}")


def model_of(config: Gemma2Config) -> dict[str, Any]:
    """Our `model` section."""
    own: dict[str, Any] = {
        "positions": llama_kin.positions(config.rope_parameters),
        "attention": llama_kin.patterns(config),
        "final_logit_softcap": config.final_logit_softcapping,
        "attention_logit_softcap": config.attn_logit_softcapping,
    }
    return section(config) | _ITS_OWN | own
