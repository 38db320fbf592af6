"""Layouts as they are written, `tp2cp2pp2dp2+sp+vp2+zero1`: read, and listed for a number of ranks."""

import re

from pretrain.errors import ConfigError
from pretrain.plan.layout import Layout

_SIZE = re.compile(r"(tp|cp|pp|dp)([1-9]\d*)")
_EXTRA = re.compile(r"(vp)([1-9]\d*)|(zero)(\d)|(sp)")


def parse(text: str, zero: int) -> Layout:
    """The layout that `text` names, the inverse of `str(layout)`. Sizes left out are 1; `zero` is what a layout with
    several copies of its weights that names none has. Raises ConfigError for text that names no layout."""
    sizes_text, *extras = text.strip().split("+")
    sizes = _SIZE.findall(sizes_text)
    found = {name: int(size) for name, size in sizes}
    if not sizes or "".join(name + size for name, size in sizes) != sizes_text or len(found) < len(sizes):
        raise _unreadable(text)
    for extra in extras:
        match = _EXTRA.fullmatch(extra)
        name, value = (group for group in match.groups() if group) if match and not match[5] else ("sp", "1")
        if match is None or name in found:
            raise _unreadable(text)
        found[name] = int(value)
    tensor, context, pipeline, data = (found.get(name, 1) for name in ("tp", "cp", "pp", "dp"))
    world, default = tensor * context * pipeline * data, zero if context * data > 1 else 0
    return Layout(
        world, tensor, pipeline, found.get("vp", 1), "sp" in found, found.get("zero", default), context=context
    )


def every_kind(world: int) -> list[Layout]:
    """Each way to lay `world` ranks out: all products of tensor, pipeline and data ranks, with and without sequence
    parallelism, with one and two model chunks a stage, with and without ZeRO-1, where these mean something; then the
    products with context ranks, with one chunk a stage and ZeRO-1, as what they add meets the rest in few places."""
    found = []
    for tensor in _divisors(world):
        for pipeline in _divisors(world // tensor):
            data = world // tensor // pipeline
            for sequence in (False, True) if tensor > 1 else (False,):
                for virtual in (1, 2) if pipeline > 1 else (1,):
                    for zero in (0, 1) if data > 1 else (0,):
                        found.append(Layout(world, tensor, pipeline, virtual, sequence, zero))
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
        f"'{text}' is not a layout: write sizes of tp, cp, pp and dp, then +sp, +vpN, +zeroN, as tp2pp2dp2+sp+vp2+zero1"
    )
