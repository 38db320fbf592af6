"""Capabilities of the models of the families. No torch."""

from pretrain.config.families import WITHOUT_CAPS, Capabilities

TRANSFORMER_XL = Capabilities(
    decoder=True,
    head_bias=True,
    memory=True,
    adaptive_softmax=True,
    planned=False,
    positions=("transformer_xl",),
    only=WITHOUT_CAPS | {"shared_layers": False},
)
XLNET = Capabilities(
    encoder=True,
    head_bias=True,
    fewest_segments=2,
    query_stream=True,
    planned=False,
    memory=True,
    input_format="xlnet",
    pooler="tanh",
    positions=("transformer_xl",),
    only=WITHOUT_CAPS | {"binary_head": False, "shared_layers": False},
)
