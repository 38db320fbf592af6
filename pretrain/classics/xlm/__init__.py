"""XLM (Lample and Conneau 2019, arXiv 1901.07291): a BERT of several languages, which are its segments."""

DECLARES = {
    "pretrain.families": {"xlm": "family:CAPABILITIES"},
    "pretrain.family_parts": {"xlm": "modules:PARTS"},
    "pretrain.hf_classes": {"xlm": "hf_class:XLM"},
    "pretrain.hf_families": {"xlm": "hf:XLM"},
}
