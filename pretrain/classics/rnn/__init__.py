"""Recurrent networks (docs/rnn.md): tanh, LSTM and GRU cells, as language models and, with attention or without, as
translators."""

DECLARES = {
    "pretrain.families": {"rnn": "family:CAPABILITIES"},
    "pretrain.family_parts": {"rnn": "modules:PARTS"},
    "pretrain.part_keys": {"recurrent": "key:KEY"},
    "pretrain.parts": {"recurrent": "part:RECURRENT"},
    "pretrain.part_specs": {"recurrent": "specs:SPECS"},
}
