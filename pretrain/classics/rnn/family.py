"""Capabilities of the models of the family. No torch."""

from pretrain.config.attention import Dense
from pretrain.config.families import BEFORE_LLAMA, Capabilities

_ONLY = BEFORE_LLAMA | {
    "heads": 1, "kv_heads": None, "head_dim": None, "ffn": None, "norm": "pre", "norm_type": "layer", "bias": True,
    "activation": "gelu_tanh", "embedding_norm": False, "embedding_scale": False, "shared_layers": False,
    "tie_encoder_decoder": False, "attention_dropout": 0.0, "ffn_dropout": 0.0, "attention.pattern": [Dense()],
}  # fmt: skip

CAPABILITIES = Capabilities(
    encoder=True,
    decoder=True,
    decoder_alone=True,
    self_attention=False,
    parts=("recurrent",),
    without_hf_class="is a recurrent network, with attention or without",
    planned=False,
    positions=("nope",),
    only=_ONLY,
)
