"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), a decoder whose positions are distances, and XLNet (Yang et al.
2019, arXiv 1906.08237), an encoder of such layers that predicts tokens in random orders. Both are exported to XLNet's
class, whose folders are imported by what XLNet, the last of the two, declares."""

DECLARES = {
    "pretrain.families": {"transformer_xl": "family:TRANSFORMER_XL", "xlnet": "family:XLNET"},
    "pretrain.family_parts": {"transformer_xl": "modules:PARTS", "xlnet": "modules:PARTS"},
    "pretrain.hf_classes": {"transformer_xl": "hf_class:TRANSFORMER_XL", "xlnet": "hf_class:XLNET"},
    "pretrain.hf_families": {"transformer_xl": "hf:TRANSFORMER_XL", "xlnet": "hf:XLNET"},
}
