"""RoFormer (Su et al. 2021, arXiv 2104.09864): a BERT with rotary positions."""

DECLARES = {
    "pretrain.families": {"roformer": "family:CAPABILITIES"},
    "pretrain.family_parts": {"roformer": "modules:PARTS"},
    "pretrain.hf_classes": {"roformer": "hf_class:ROFORMER"},
    "pretrain.hf_families": {"roformer": "hf:ROFORMER"},
}
