"""DeBERTa, its three versions (He et al. 2020 and 2021, arXiv 2006.03654 and 2111.09543): an encoder whose attention
reads distances, and whose last layer alone reads positions."""

DECLARES = {
    "pretrain.positions": {"disentangled": "key:DisentangledPositions"},
    "pretrain.distance_attention": {"disentangled": "attention_modules:DisentangledAttention"},
    "pretrain.part_keys": {"mask_decoder_layers": "key:MASK_DECODER", "convolution": "key:CONVOLUTION"},
    "pretrain.parts": {"mask_decoder_layers": "part:MASK_DECODER", "convolution": "part:CONVOLUTION"},
    "pretrain.part_specs": {
        "disentangled": "specs:DISTANCES",
        "mask_decoder_layers": "specs:MASK_DECODER_SPECS",
        "convolution": "specs:CONVOLUTION",
    },
    "pretrain.part_modules": {
        "disentangled": "distance_modules:MODULES",
        "mask_decoder_layers": "decoder_modules:MODULES",
        "convolution": "convolution_modules:MODULES",
    },
    "pretrain.part_work": {"mask_decoder_layers": "work:MASK_DECODER", "convolution": "work:CONVOLUTION"},
    "pretrain.families": {"deberta": "family:DEBERTA", "deberta_v2": "family:DEBERTA_V2"},
    "pretrain.family_parts": {"deberta": "modules:PARTS", "deberta_v2": "modules:PARTS"},
    "pretrain.hf_classes": {"deberta": "hf_class:DEBERTA", "deberta_v2": "hf_class:DEBERTA_V2"},
    "pretrain.hf_families": {"deberta": "hf:DEBERTA", "deberta_v2": "hf:DEBERTA_V2"},
}
