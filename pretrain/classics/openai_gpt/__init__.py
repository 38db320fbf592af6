"""GPT (Radford et al. 2018), whose norms come after sublayers, as transformers' OpenAI GPT: a further class of the gpt
family."""

DECLARES = {
    "pretrain.hf_classes": {"openai_gpt": "hf_class:OPENAI_GPT"},
    "pretrain.hf_families": {"openai_gpt": "hf:OPENAI_GPT"},
}
