"""Layouts as they are written, `tp2cp2pp2dp2+sp+vp2+zero1`: read, and listed for a number of ranks."""

import re
from dataclasses import replace
from typing import Literal

from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout

_SIZE = re.compile(r"(tp|cp|pp|dp)([1-9]\d*)")
_EXTRA = re.compile(r"(vp)([1-9]\d*)|(zero)(\d)|(sp|deepspeed)")


def parse(text: str, zero: int, zero_engine: Literal["megatron", "deepspeed"] = "megatron") -> Layout:
    """The layout that `text` names, the inverse of `str(layout)`. Sizes left out are 1; stage `zero` of `zero_engine`
    is what a layout with several copies of its weights that names none has. Raises ConfigError for text that names no
    layout."""
    sizes_text, *extras = text.strip().split("+")
    sizes = _SIZE.findall(sizes_text)
    found = {name: int(size) for name, size in sizes}
    if not sizes or "".join(name + size for name, size in sizes) != sizes_text or len(found) < len(sizes):
        raise _unreadable(text)
    for extra in extras:
        match = _EXTRA.fullmatch(extra)
        if match is None:
            raise _unreadable(text)
        name, value = (match[5], "1") if match[5] else (group for group in match.groups() if group)
        if name in found:
            raise _unreadable(text)
        found[name] = int(value)
    tensor, context, pipeline, data = (found.get(name, 1) for name in ("tp", "cp", "pp", "dp"))
    stage = found.get("zero", zero if context * data > 1 else 0)
    named = "zero" in found or "deepspeed" in found
    deepspeed = "deepspeed" in found or stage > 1 if named else stage > 0 and zero_engine == "deepspeed"
    return Layout(
        tensor * context * pipeline * data,
        tensor,
        pipeline,
        found.get("vp", 1),
        "sp" in found,
        stage,
        "deepspeed" if deepspeed else "megatron",
        context,
    )


def every_kind(world: int) -> list[Layout]:
    """Each way to lay `world` ranks out: all products of tensor, pipeline and data ranks, with and without sequence
    parallelism, with one and two model chunks a stage, without ZeRO, with megatron-core's and with DeepSpeed's stages,
    where these mean something; then the products with context ranks, with one chunk a stage and megatron-core's
    ZeRO-1, as what they add meets the rest in few places."""
    found = []
    for tensor in _divisors(world):
        for pipeline in _divisors(world // tensor):
            data = world // tensor // pipeline
            for sequence in (False, True) if tensor > 1 else (False,):
                for virtual in (1, 2) if pipeline > 1 else (1,):
                    plain = Layout(world, tensor, pipeline, virtual, sequence, 0)
                    found.append(plain)
                    if data > 1:
                        found.append(replace(plain, zero=1))
                        found += [replace(plain, zero=stage, zero_engine="deepspeed") for stage in (1, 2, 3)]
    for context in _divisors(world)[1:]:
        for tensor in _divisors(world // context):
            for pipeline in _divisors(world // context // tensor):
                for sequence in (False, True) if tensor > 1 else (False,):
                    found.append(Layout(world, tensor, pipeline, 1, sequence, 1, context=context))
    return found


def short(layout: Layout) -> str:
    """`str(layout)` without the sizes that are 1."""
    if layout.world == 1:
        return "one rank"
    return re.sub(r"(tp|pp|dp)1(?!\d)", "", str(layout))


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _unreadable(text: str) -> ConfigError:
    return ConfigError(
        f"'{text}' is not a layout: write sizes of tp, cp, pp and dp, then +sp, +vpN, +zeroN, "
        "+deepspeed (for its stage 1), as tp2pp2dp2+sp+vp2+zero1"
    )
