"""Relative positions of Shaw, Uszkoreit and Vaswani 2018 (arXiv 1803.02155): vectors of distances in each layer, which
are added to keys and to values."""

DECLARES = {
    "pretrain.positions": {"shaw": "key:ShawPositions"},
    "pretrain.distance_attention": {"shaw": "modules:ShawAttention"},
    "pretrain.part_specs": {"shaw": "specs:SPECS"},
}
