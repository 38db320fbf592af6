"""Capabilities of the models of the families. No torch."""

from dataclasses import replace

from pretrain.config.families import BEFORE_LLAMA, Capabilities

DEBERTA = Capabilities(
    encoder=True,
    masked_head=True,
    head_bias=True,
    fewest_segments=1,
    pooler="activation",
    key_bias=False,
    parts=("mask_decoder_layers",),
    positions=("disentangled",),
    only=BEFORE_LLAMA
    | {
        "binary_head": False,
        "norm": "post",
        "kv_heads": None,
        "embedding_size": None,
        "shared_layers": False,
        "bias": True,
    },
)
DEBERTA_V2 = replace(
    DEBERTA, key_bias=True, parts=("mask_decoder_layers", "convolution"), generator=True, detector_context=True
)
