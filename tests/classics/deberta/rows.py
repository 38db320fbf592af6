"""DeBERTa in the tests of all families."""

from typing import Any

from tests.helpers.breadth import slow

_MODEL: dict[str, Any] = {
    "family": "deberta", "layers": 4, "norm": "post", "norm_eps": 1e-12, "activation": "gelu", "segments": 2,
    "binary_head": False, "embedding_norm": True, "init": {"scale_residual": False}, "attention": {},
}  # fmt: skip
_V2 = _MODEL | {
    "family": "deberta_v2", "segments": 0, "positions": {
        "name": "disentangled", "max_distance": 24, "num_buckets": 8, "shared_projections": True, "norm": True,
    },
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "deberta": {
        "model": _MODEL | {"positions": {"name": "disentangled", "max_distance": 16}},
        "objective": {"name": "masked"},
    },
    "deberta_v2": {"model": _V2 | {"convolution": "gelu"}, "objective": {"name": "masked"}},
    "deberta-decoder": {
        "model": _V2 | {"convolution": "tanh", "mask_decoder_layers": 2}, "objective": {"name": "masked"},
    },
}  # fmt: skip
OF_EACH_KIND = ("deberta",)
NO_CLASS = ("deberta-decoder",)
"""families without a class of transformers that has their heads"""
PADDED_WITHIN = ("deberta", slow("deberta_v2"))
"""families whose answers are compared where padding is not at the end"""
HEADED = ("deberta", "deberta_v2")
"""encoders with all kinds of heads but those of choices"""
HEADS = (("deberta_v2", "choice"),)
HEADS_REFUSED = {("deberta", "choice"): "transformers has no such class of DeBERTa v1"}
HEADS_THERE_AND_BACK = (("deberta", "classification"), ("deberta_v2", "choice"), ("deberta_v2", "spans"))
CURVES = {"deberta": "deberta"}
"""golden curves on every layout: a config of configs/debug"""
CONFIGS = (
    *("deberta/base", "deberta/large", "deberta-v2/xlarge", "deberta-v2/xxlarge"),
    *(f"deberta-v3/{size}" for size in ("xsmall", "small", "base", "large")),
)
CLASSES = {"deberta-v3/": "DebertaV2ForMaskedLM", "debug/deberta-v3": "DebertaV2ForMaskedLM"}
"""beginnings of configs' names: the class of an export, of their encoder; the detector has no class"""
REFUSED = dict.fromkeys(
    ("debug/deberta", "deberta-v2/xlarge", "deberta-v2/xxlarge", "deberta/base", "deberta/large"),
    "model.mask_decoder_layers=2",
)
"""configs that no class of transformers can express: what the sentence names"""
