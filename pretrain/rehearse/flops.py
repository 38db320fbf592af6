"""Floating-point operations of torch's operators, as a GPU's kernels execute them."""

from typing import Any

from torch.utils.flop_counter import flop_registry


def operator_flops(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Operations of one call: of matrix products and attention, 0 for all else. A multiply-add is two. A causal
    kernel computes the pairs of a query and a key that it sees; its backward pass computes the scores again."""
    name, packet = func._opname, func._overloadpacket
    if name.startswith("_scaled_mm"):  # torch's registry lacks it, `addmm_`, and an `addmm` of another dtype
        return 2 * int(args[0].shape[0] * args[0].shape[1] * args[1].shape[1])
    if name in ("addmm", "addmm_"):
        return 2 * int(args[1].shape[0] * args[1].shape[1] * args[2].shape[1])
    if name == "bmm":  # which the registry cannot read if another dtype is asked for
        return 2 * int(args[0].numel() * args[1].shape[-1])
    if name == "_grouped_mm":  # each row meets one of several matrices, so their number does not count
        return 2 * int(args[0].shape[0] * args[0].shape[1] * args[1].shape[-1])
    if packet not in flop_registry:
        return 0
    named = {key: value for key, value in kwargs.items() if key not in ("out", "out_dtype")}
    flops = int(flop_registry[packet](*args, **named, out_val=out))
    return round(flops * _seen_share(func, args, kwargs))


def _seen_share(func: Any, args: Any, kwargs: Any) -> float:
    """Share of all pairs of queries and keys that a causal kernel sees; 1 for other operators."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    if not given.get("is_causal"):
        return 1.0
    queries, keys = int(given["query"].shape[-2]), int(given["key"].shape[-2])
    seen = sum(min(query + 1, keys) for query in range(queries))
    return seen / (queries * keys)
