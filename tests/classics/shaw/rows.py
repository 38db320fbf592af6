"""Shaw's positions in the tests of all families."""

from typing import Any

_MODEL: dict[str, Any] = {  # but for ReLU, which "transformer" has: at its kink, rounding decides on whole gradients
    "family": "transformer", "layers": 2, "encoder_layers": 2, "target_length": 16, "norm": "post",
    "activation": "gelu", "embedding_scale": True, "init": "xavier", "attention": {}, "tie_word_embeddings": False,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "shaw": {
        "model": _MODEL | {"positions": {"name": "shaw", "max_distance": 4, "per_head": True}},
        "objective": {"name": "pairs"},
    },
    "shaw-shared": {
        "model": _MODEL | {"positions": {"name": "shaw", "max_distance": 3}}, "objective": {"name": "pairs"},
    },
}  # fmt: skip
NO_CLASS = ("shaw", "shaw-shared")
"""families without a class of transformers that has their heads"""
COPIERS = ("shaw",)
"""encoder-decoders whose positions find a token by its distance"""
DECODERS = ("shaw",)
"""families whose decoding is compared with training"""
HALF_PRECISION = ("shaw-shared",)
"""families with a kind of parameter that others do not have: a table of distances"""
TWO_ROWS = ("shaw",)
"""families whose activations are counted with two rows in a micro-batch, too"""
CONFIGS = ("transformer/shaw-base", "transformer/shaw-big")
PUBLISHED = {
    "transformer/shaw-base": ("pairs", "zwei rot", ("model.positions={name: shaw, max_distance: 4}",)),
}
"""configs of translators: dataset, text, changes"""
REFUSED = dict.fromkeys(CONFIGS, "model.positions")
"""configs that no class of transformers can express: what the sentence names"""
