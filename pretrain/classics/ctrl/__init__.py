"""CTRL (Keskar et al. 2019, arXiv 1909.05858): a decoder whose texts begin with a control code."""

DECLARES = {
    "pretrain.families": {"ctrl": "family:CAPABILITIES"},
    "pretrain.family_parts": {"ctrl": "modules:PARTS"},
    "pretrain.hf_classes": {"ctrl": "hf_class:CTRL"},
    "pretrain.hf_families": {"ctrl": "hf:CTRL"},
}
