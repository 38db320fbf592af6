"""GPT-Neo (Black et al. 2021), whose layers may see a band: a further class of transformers for the gpt family."""

DECLARES = {
    "pretrain.hf_classes": {"gpt_neo": "hf_class:GPT_NEO"},
    "pretrain.hf_families": {"gpt_neo": "hf:GPT_NEO"},
}
