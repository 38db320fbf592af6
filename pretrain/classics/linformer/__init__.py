"""Linformer (Wang et al. 2020, arXiv 2006.04768): attention to fewer keys, each a learned sum over all positions."""

DECLARES = {
    "pretrain.patterns": {"linformer": "key:Linformer"},
    "pretrain.pattern_modules": {"linformer": "modules:SequenceProjection"},
    "pretrain.part_specs": {"linformer": "specs:SPECS"},
}
