"""What is compared, and how far off each quantity may be: what rounding explains."""

from pretrain.verify.departure import Verdict

# What summing in another order does in fp32, with room. docs/benchmarks.md has what was measured.
FP32 = {"loss": 1e-5, "gradient norm": 1e-5, "gradient": 1e-4, "update": 1e-3, "decay": 1e-1, "scores": 1e-4}
# How far from fp32 half precision may lead one rank.
HALF = {"loss": 2e-2, "gradient norm": 5e-2, "gradient": 2e-1, "update": 5e-1, "decay": 5e-1, "scores": 1e-1}
# Likewise fp8, whose numbers have 3 or 4 bits in place of bf16's 8.
FP8 = {"loss": 5e-2, "gradient norm": 3e-2, "gradient": 5e-1, "update": 5e-1, "decay": 5e-1, "scores": 2e-1}
# How many times as far as one rank a layout may depart. Training amplifies rounding, more at a higher learning rate, so
# it is measured: one rank departs in fp32 only because its micro-batches are of another size, in half by all rounding.
# In fp8 layouts depart about as far as one rank does: rounding is coarse, and nearly the same on each.
_MARGINS = {"fp32": 10.0, "bf16": 4.0, "fp16": 4.0, "fp8": 2.0}
# What one rank may be near the reference by, by luck: one number, or the parameter that rounding shakes most, where
# layouts were 4 times apart. fp16 has 3 bits more than bf16.
_FLOORS = {
    "fp32": FP32,
    "bf16": {"loss": 1e-3, "gradient norm": 5e-3, "gradient": 1e-1, "update": 1e-1, "decay": 3e-1, "scores": 1e-2},
    "fp16": {"loss": 1e-3, "gradient norm": 5e-3, "gradient": 2e-2, "update": 2e-2, "decay": 3e-1, "scores": 1e-2},
    "fp8": {"loss": 1e-2, "gradient norm": 1e-2, "gradient": 3e-1, "update": 3e-1, "decay": 3e-1, "scores": 3e-2},
}


def bounds_of(precision: str, one_rank: Verdict | None) -> dict[str, float]:
    """What rounding explains in `precision`, given what it did on one rank (None: that is what is to be found out)."""
    if one_rank is None:
        return {"fp32": FP32, "bf16": HALF, "fp16": HALF, "fp8": FP8}[precision]
    margin = _MARGINS[precision]
    return {name: max(floor, margin * one_rank.largest[name]) for name, floor in _FLOORS[precision].items()}
