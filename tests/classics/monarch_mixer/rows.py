"""Monarch Mixer in the tests of all families."""

from typing import Any

FAMILIES: dict[str, dict[str, Any]] = {
    "monarch_mixer": {
        "model": {
            "family": "monarch_mixer", "layers": 4, "heads": 1, "norm": "post", "norm_eps": 1e-12,
            "activation": "gated_gelu", "ffn": 160, "ffn_blocks": 4, "mixer": {"filter_order": 12}, "segments": 2,
            "binary_head": False, "embedding_norm": True, "init": {"scale_residual": False}, "attention": {},
        },
        "objective": {"name": "masked"},
    },
}  # fmt: skip
NO_CLASS = ("monarch_mixer",)
GOLDEN = {
    "monarch-mixer": (
        "monarch-mixer",
        [
            "model.layers=2",
            "model.hidden=32",
            "model.sequence_length=48",
            "model.ffn=64",
            "schedule.warmup_steps=2",
        ],
        "text",
    ),
}
CONFIGS = tuple(f"m2-bert/{size}" for size in ("80m", "110m", "260m", "341m"))
NOT_PLANNED = ("m2-bert/110m",)
REFUSED = dict.fromkeys(["debug/monarch-mixer", *CONFIGS], "no class of transformers has the long convolutions")
"""configs: why they are not exported"""
LATER_CRASHES = {
    "monarch-mixer": """
model: {family: monarch_mixer, WITHOUT_HEADS, norm: post, norm_eps: 1e-12, embedding_norm: true,
  activation: gated_gelu, ffn_blocks: 4, mixer: {filter_order: 12}, attention: {}}
objective: {name: masked}
""",
}
DROPOUT_OF_CRASHES = {"monarch-mixer": ["model.dropout=0.1", "model.ffn_dropout=0.1"]}
