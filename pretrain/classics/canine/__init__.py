"""CANINE (Clark et al. 2022, arXiv 2103.06874): an encoder that reads characters, in molecules of four."""

DECLARES = {
    "pretrain.families": {"canine": "family:CAPABILITIES"},
    "pretrain.family_parts": {"canine": "modules:PARTS"},
    "pretrain.part_keys": {"characters": "key:KEY"},
    "pretrain.parts": {"characters": "part:CHARACTERS"},
    "pretrain.part_specs": {"characters": "specs:SPECS"},
    "pretrain.hf_classes": {"canine": "hf_class:CANINE"},
    "pretrain.hf_families": {"canine": "hf:CANINE"},
}
