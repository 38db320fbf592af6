"""Capabilities of the models of the family. No torch."""

from pretrain.config.families import BEFORE_LLAMA, Capabilities

CAPABILITIES = Capabilities(
    encoder=True,
    masked_head=True,
    head_bias=True,
    fewest_segments=1,
    pooler="tanh",
    self_attention=False,
    parts=("mixer", "ffn_blocks"),
    without_hf_class="has the long convolutions of model.family=monarch_mixer",
    planned=False,
    positions=("learned", "sinusoidal"),
    only=BEFORE_LLAMA
    | {
        "norm": "post",
        "bias": True,
        "kv_heads": None,
        "head_dim": None,
        "attention_dropout": 0.0,
        "embedding_size": None,
        "shared_layers": False,
        "gated": True,
    },
)
