"""PEGASUS (Zhang et al. 2020, arXiv 1912.08777), a Transformer with norms before its sublayers, as transformers'
Pegasus: a further class of the transformer family. What it learns from is an objective of any encoder-decoder
(`data_pipeline/recipes/gap_sentences.py`)."""

DECLARES = {
    "pretrain.hf_classes": {"pegasus": "hf_class:PEGASUS"},
    "pretrain.hf_families": {"pegasus": "hf:PEGASUS"},
}
