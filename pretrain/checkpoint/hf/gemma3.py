"""Gemma 3 of text: norms on both sides of each sublayer and of queries and keys, scaled embeddings, most layers with a
sliding window and angles of their own."""

from typing import Any

from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from data_pipeline.tokenizers.specials import Specials
from pretrain.checkpoint.hf import llama_kin
from pretrain.checkpoint.hf.llama_kin import HEADS, OBJECTIVE, activation, check_decoder, fields, links, section
from pretrain.config.model import Model
from pretrain.config.positions import RotaryPositions
from pretrain.errors import ConfigError

__all__ = ["CLASS", "HEADS", "MODEL_TYPE", "OBJECTIVE", "hf_config", "links", "model_of", "refuse", "takes"]

CLASS, MODEL_TYPE = Gemma3ForCausalLM, "gemma3_text"
_ITS_OWN: dict[str, Any] = {
    "norm": "sandwich", "norm_type": "rms_zero_centered", "qk_norm": True, "embedding_scale": True,
}  # fmt: skip


def takes(model: Model) -> bool:
    return model.norm == "sandwich"


def hf_config(model: Model, specials: Specials) -> Gemma3TextConfig:
    """Every field stated. Raises ConfigError for a model that Gemma 3 cannot express."""
    local_base = model.positions.local_base if isinstance(model.positions, RotaryPositions) else None
    wanted = _ITS_OWN | {"positions.local_base": local_base, "final_logit_softcap": model.final_logit_softcap}
    check_decoder(model, "Gemma 3", patterns=("dense", "banded"), **wanted)
    local = llama_kin.rope(model) if local_base is None else {"rope_type": "default", "rope_theta": local_base}
    return Gemma3TextConfig(
        **fields(model, specials), hidden_activation=activation(model), attention_bias=False,
        rope_parameters={"full_attention": llama_kin.rope(model), "sliding_attention": local},
        query_pre_attn_scalar=model.dim_per_head, sliding_window=next(iter(llama_kin.windows(model)), None),
        layer_types=llama_kin.layer_types(model), final_logit_softcapping=model.final_logit_softcap,
        attn_logit_softcapping=None, use_bidirectional_attention=False, architectures=[CLASS.__name__],
    )  # fmt: skip


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for parts that models of this family have not."""
    llama_kin.refuse(tree, most_layers)
    scale, width = tree.get("query_pre_attn_scalar", 256), tree.get("head_dim", 256)
    if scale != width:
        raise ConfigError(f"query_pre_attn_scalar {scale} is not known here where it is not head_dim, {width}")


def model_of(config: Gemma3TextConfig) -> dict[str, Any]:
    """Our `model` section."""
    rope: Any = config.rope_parameters
    positions = llama_kin.positions(rope["full_attention"])
    local = llama_kin.positions(rope["sliding_attention"])
    if local != positions:
        if "scaling" in local:
            raise ConfigError("positions of layers with a sliding window are scaled, which is not known here")
        positions["local_base"] = local["base"]
    own: dict[str, Any] = {
        "positions": positions,
        "attention": llama_kin.patterns(config),
        "final_logit_softcap": config.final_logit_softcapping,
    }
    return section(config) | _ITS_OWN | own
