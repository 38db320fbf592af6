"""CANINE in the tests of all families."""

from typing import Any

_CHARACTERS = {"hashes": 4, "buckets": 97, "block": 8, "rate": 4, "kernel": 4}
_MODEL: dict[str, Any] = {
    "family": "canine", "layers": 4, "norm": "post", "norm_eps": 1e-12, "activation": "gelu", "segments": 2,
    "binary_head": False, "embedding_norm": True, "init": {"scale_residual": False}, "attention": {},
    "tie_word_embeddings": False, "characters": _CHARACTERS,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "canine": {"model": _MODEL, "objective": {"name": "character_subwords", "subwords": "unused"}},
    "canine-c": {
        "model": _MODEL | {"vocabulary": 97, "characters": _CHARACTERS | {"autoregressive": True}},
        "objective": {"name": "character_spans", "buckets": 97},
    },
}
OF_EACH_KIND = ("canine-c",)
NO_CLASS = ("canine", "canine-c")
"""families without a class of transformers that has their heads"""

GOLDEN = {
    "canine-in-order": ("canine", ["schedule.warmup_steps=2"], "characters"),
    "canine-masked": (
        "canine",
        [
            "schedule.warmup_steps=2",
            "model.characters.autoregressive=false",
            "model.vocabulary=null",
            "objective={name: character_subwords, subwords: DATASETS/subwords.json}",
        ],
        "characters",
    ),
}
"""curves: a config of configs/debug, changes to it, and its dataset"""
CONFIGS = ("canine/c", "canine/s")
REHEARSED = ("debug/canine",)
NOT_PLANNED = ("canine/s",)
CLASSES = {"canine/": "CanineModel", "debug/canine": "CanineModel"}
"""beginnings of configs' names: the class of an export, of their encoder; no class has their heads"""
CRASHES = {
    "canine": """
model: {family: canine, ENCODER, tie_word_embeddings: false, segments: 2, attention: {},
  characters: {buckets: 512, block: 8, autoregressive: true}}
objective: {name: character_spans, buckets: 512}
""",
}
