"""BART's source encoder (Lewis et al. 2020, arXiv 1910.13461, section 3.4): a new encoder for another vocabulary, by
which a model learns to translate."""

DECLARES = {
    "pretrain.part_keys": {"source_encoder": "key:KEY"},
    "pretrain.parts": {"source_encoder": "part:SOURCE_ENCODER"},
    "pretrain.part_specs": {"source_encoder": "specs:SPECS"},
    "pretrain.part_modules": {"source_encoder": "modules:MODULES"},
    "pretrain.part_work": {"source_encoder": "work:WORK"},
}
