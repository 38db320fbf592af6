"""ALBERT (Lan et al. 2019, arXiv 1909.11942): a BERT whose layers share their weights, with narrow embeddings."""

DECLARES = {
    "pretrain.families": {"albert": "family:CAPABILITIES"},
    "pretrain.family_parts": {"albert": "modules:PARTS"},
    "pretrain.hf_classes": {"albert": "hf_class:ALBERT"},
    "pretrain.hf_families": {"albert": "hf:ALBERT"},
}
