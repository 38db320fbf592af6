"""ELECTRA (Clark et al. 2020, arXiv 2003.10555): an encoder that finds the tokens that a generator replaced."""

DECLARES = {
    "pretrain.families": {"electra": "family:CAPABILITIES"},
    "pretrain.family_parts": {"electra": "modules:PARTS"},
    "pretrain.hf_classes": {"electra": "hf_class:ELECTRA"},
    "pretrain.hf_families": {"electra": "hf:ELECTRA"},
}
