"""Names of layouts, such as `tp2cp2ep2pp2dp2+sp+vp2+zero1`, and the layouts that `verify` compares."""

import re
from dataclasses import replace
from math import gcd
from typing import Literal

from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout

_SIZE = re.compile(r"(etp|tp|cp|ep|pp|dp)([1-9]\d*)")
_EXTRA = re.compile(r"(vp)([1-9]\d*)|(zero)(\d)|(sp|deepspeed)")


def parse_layout(text: str, zero: int, zero_engine: Literal["megatron", "deepspeed"] = "megatron") -> Layout:
    """The layout that `text` names, the inverse of `str(layout)`. The default of each size is 1, but that of data
    ranks as many as the expert ranks need, and the default ZeRO stage of a layout that replicates weights is `zero` of
    `zero_engine`. Raises ConfigError for text that is no
    layout."""
    sizes_text, *extras = text.strip().split("+")
    sizes = _SIZE.findall(sizes_text)
    values = {name: int(size) for name, size in sizes}
    if not sizes or "".join(name + size for name, size in sizes) != sizes_text or len(values) < len(sizes):
        raise _unreadable(text)
    for extra in extras:
        match = _EXTRA.fullmatch(extra)
        if match is None:
            raise _unreadable(text)
        name, value = (match[5], "1") if match[5] else (group for group in match.groups() if group)
        if name in values:
            raise _unreadable(text)
        values[name] = int(value)
    tensor, context, expert, pipeline = (values.get(name, 1) for name in ("tp", "cp", "ep", "pp"))
    unsplit = values.get("etp", tensor) != tensor
    if unsplit and values["etp"] != 1:
        raise ConfigError(f"'{text}': etp is 1, or as many as tp")
    data = values.get("dp", expert // gcd(expert, context * (tensor if unsplit else 1)))
    plain = Layout(
        world=tensor * context * pipeline * data,
        tensor=tensor,
        pipeline=pipeline,
        virtual=values.get("vp", 1),
        sequence="sp" in values,
        context=context,
        expert=expert,
        unsplit_experts=unsplit,
    )
    stage = values.get("zero", zero if plain.replicates else 0)
    named = "zero" in values or "deepspeed" in values
    deepspeed = "deepspeed" in values or stage > 1 if named else stage > 0 and zero_engine == "deepspeed"
    return replace(plain, zero=stage, zero_engine="deepspeed" if deepspeed else "megatron")


def layouts_to_verify(world: int) -> list[Layout]:
    """Every product of tensor, pipeline and data ranks on `world` ranks, with and without sequence parallelism, with
    one and two model chunks per stage, without ZeRO, and with megatron-core's and DeepSpeed's stages where they differ;
    then the products with context ranks, with one chunk per stage and megatron-core's ZeRO-1 only, because context
    parallelism interacts with few of the other options."""
    layouts = []
    for tensor in _divisors(world):
        for pipeline in _divisors(world // tensor):
            data = world // tensor // pipeline
            for sequence in (False, True) if tensor > 1 else (False,):
                for virtual in (1, 2) if pipeline > 1 else (1,):
                    plain = Layout(world=world, tensor=tensor, pipeline=pipeline, virtual=virtual, sequence=sequence)
                    layouts.append(plain)
                    if data > 1:
                        layouts.append(replace(plain, zero=1))
                        layouts += [replace(plain, zero=stage, zero_engine="deepspeed") for stage in (1, 2, 3)]
    for context in _divisors(world)[1:]:
        for tensor in _divisors(world // context):
            for pipeline in _divisors(world // context // tensor):
                for sequence in (False, True) if tensor > 1 else (False,):
                    plain = Layout(world=world, tensor=tensor, pipeline=pipeline, sequence=sequence, context=context)
                    layouts.append(replace(plain, zero=1))
    return layouts


def expert_layouts_to_verify(world: int) -> list[Layout]:
    """Every product of tensor, pipeline and data ranks on `world` ranks with every number of expert ranks, with and
    without sequence parallelism, with one chunk per stage and megatron-core's ZeRO-1; then those in which tensor ranks
    split no expert, without sequence parallelism the largest number of expert ranks alone."""
    layouts = []
    for tensor in _divisors(world):
        for pipeline in _divisors(world // tensor):
            plain = Layout(world=world, tensor=tensor, pipeline=pipeline, zero=1)
            for sequence in (False, True) if tensor > 1 else (False,):
                one = replace(plain, sequence=sequence)
                layouts += [replace(one, expert=ranks) for ranks in _divisors(plain.data)[1:]]
                numbers = _divisors(world // pipeline)[0 if sequence else -1 :]
                layouts += [replace(one, expert=ranks, unsplit_experts=True) for ranks in numbers if tensor > 1]
    return layouts


def short_name(layout: Layout) -> str:
    """`str(layout)` without sizes of 1."""
    if layout.world == 1:
        return "one rank"
    return re.sub(r"(?<!e)(tp|pp|dp)1(?!\d)", "", str(layout))


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _unreadable(text: str) -> ConfigError:
    return ConfigError(
        f"'{text}' is not a layout: write sizes of tp (parallel.tensor), cp (parallel.context), ep (parallel.expert), "
        "etp (parallel.expert_tensor), pp (parallel.pipeline) and dp (data parallel ranks), then "
        "+sp (parallel.sequence), +vpN (parallel.virtual), "
        "+zeroN (parallel.zero) and +deepspeed (parallel.zero_engine, for its stage 1), for example "
        "tp2pp2dp2+sp+vp2+zero1"
    )
