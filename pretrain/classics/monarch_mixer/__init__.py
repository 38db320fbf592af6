"""Monarch Mixer (Fu et al. 2023, arXiv 2310.12109): encoders of gated long convolutions and block-diagonal feed-forward
layers, without attention."""

DECLARES = {
    "pretrain.families": {"monarch_mixer": "family:CAPABILITIES"},
    "pretrain.family_parts": {"monarch_mixer": "modules:PARTS"},
    "pretrain.part_keys": {"mixer": "key:MIXER_KEY", "ffn_blocks": "key:BLOCKS_KEY"},
    "pretrain.parts": {"mixer": "part:MIXER", "ffn_blocks": "part:FFN_BLOCKS"},
    "pretrain.part_specs": {"ffn_blocks": "specs:SPECS"},
}
