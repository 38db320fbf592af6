"""Capabilities of the models of the family. No torch."""

from pretrain.config.families import BEFORE_LLAMA, Capabilities

CAPABILITIES = Capabilities(
    encoder=True,
    masked_head=True,
    head_bias=True,
    fewest_segments=1,
    parts=("characters",),
    hashes_inputs=True,
    planned=False,
    pooler="tanh",
    positions=("learned",),
    only=BEFORE_LLAMA
    | {
        "norm": "post",
        "norm_type": "layer",
        "bias": True,
        "kv_heads": None,
        "embedding_norm": True,
        "embedding_scale": False,
        "embedding_size": None,
        "shared_layers": False,
        "tie_word_embeddings": False,
        "position_offset": 0,
    },
)
