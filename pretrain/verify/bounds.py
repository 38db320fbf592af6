"""Bounds of each compared quantity: how far apart rounding alone may bring two layouts."""

from pretrain.config.run_config import RunConfig
from pretrain.verify.departure import Verdict

# What summing in another order does in fp32, with a margin. docs/benchmarks.md has what was measured.
FP32 = {
    "loss": 1e-5,
    "gradient norm": 1e-5,
    "gradient": 1e-4,
    "update": 1e-3,
    "decay": 1e-1,
    "scores": 1e-4,
    "router scores": 1e-4,
    "flips": 1e-3,
}
# How far half precision may take one rank from fp32.
HALF = {
    "loss": 2e-2,
    "gradient norm": 5e-2,
    "gradient": 2e-1,
    "update": 5e-1,
    "decay": 5e-1,
    "scores": 1e-1,
    "router scores": 2e-1,
    "flips": 5e-2,
}
# The same for fp8, whose numbers have 3 or 4 significant bits where bf16 has 8.
FP8 = {
    "loss": 5e-2,
    "gradient norm": 3e-2,
    "gradient": 5e-1,
    "update": 5e-1,
    "decay": 5e-1,
    "scores": 2e-1,
    "router scores": 7e-1,
    "flips": 5e-2,
}
# A layout may depart from the reference this many times as far as one rank does. Training amplifies rounding, more so
# at a higher learning rate, so it is measured: in fp32 one rank departs only because its micro-batches have another
# size, in half precision by all of its rounding. In fp8 layouts depart about as far as one rank: rounding is coarse and
# nearly the same on each.
_MARGINS = {"fp32": 10.0, "bf16": 4.0, "fp16": 4.0, "fp8": 2.0}
# Lower limits of the bounds, for one rank may be close to the reference by luck: in a single number, or in the
# parameter that rounding affects most, where layouts were 4 times further apart. fp16 has 3 bits more than bf16.
_FLOORS = {
    "fp32": FP32,
    "bf16": {
        "loss": 1e-3,
        "gradient norm": 5e-3,
        "gradient": 1e-1,
        "update": 1e-1,
        "decay": 3e-1,
        "scores": 1e-2,
        "router scores": 1e-1,
        "flips": 1e-2,
    },
    "fp16": {
        "loss": 1e-3,
        "gradient norm": 5e-3,
        "gradient": 2e-2,
        "update": 2e-2,
        "decay": 3e-1,
        "scores": 1e-2,
        "router scores": 2e-2,
        "flips": 5e-3,
    },
    "fp8": {
        "loss": 1e-2,
        "gradient norm": 1e-2,
        "gradient": 3e-1,
        "update": 3e-1,
        "decay": 3e-1,
        "scores": 3e-2,
        "router scores": 2e-1,
    },
}
# Share of a step's samples that rounding may flip: about one in 200 in bf16, of about 150 in the smallest step. A fault
# in sampling changes all samples of a rank.
_FLIPS = {"fp32": 2e-2, "bf16": 5e-2, "fp16": 5e-2, "fp8": 5e-2}


def bounds_of(config: RunConfig, one_rank: Verdict | None) -> dict[str, float]:
    """The bound of each quantity in the precision of `config`, given the verdict on one rank (None: one rank itself is
    being judged)."""
    precision = config.precision
    flips = {"flips": _FLIPS[precision], "route flips": 1.0}
    if one_rank is None:
        return {"fp32": FP32, "bf16": HALF, "fp16": HALF, "fp8": FP8}[precision] | flips
    margin = _MARGINS[precision]
    return {name: max(floor, margin * one_rank.largest[name]) for name, floor in _FLOORS[precision].items()} | flips
