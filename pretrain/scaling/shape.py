"""The shape of a model of a given size: the base's, scaled.

Width of heads, of the feed-forward layer as a part of the hidden one, and what else the base says stay. Layers and
hidden width grow together, so that hidden / layers stays near the base's: over a wide range of it the loss hardly
changes (Kaplan et al. 2020, arXiv 2001.08361, section 3.1)."""

import math
from collections.abc import Iterator
from typing import Any

from pretrain.config.load import validate
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.scaling.size import parameters_at_work

_OFF = 0.1  # of the size, at most
_ASPECT = 0.05  # how much the square of a logarithm of the shape's being off weighs against the size's
_MOST_LAYERS, _MOST_HEADS = 400, 1024


def shaped(base: Model, parameters: float) -> Model:
    """Raises ConfigError where no shape of `base` comes within 10% of so many parameters."""
    best = min(_shapes(base, parameters), default=None)
    model = _model(base, *best[1:]) if best is not None else None
    if model is None or abs(parameters_at_work(model) / parameters - 1) > _OFF:
        near = f"the nearest has {parameters_at_work(model):,.0f}" if model is not None else "the smallest is larger"
        raise ConfigError(
            f"no model like the base, with heads of {base.dim_per_head}, has about {parameters:,.0f} parameters in its "
            f"layers and head: {near}; choose another size, or a base with narrower heads or a smaller vocabulary"
        )
    return model


def _shapes(base: Model, parameters: float) -> Iterator[tuple[float, int, int]]:
    """(how far off, heads, layers) of every width, with the numbers of layers that come nearest."""
    groups = base.heads // base.num_kv_heads
    least = 1 + (base.experts.dense_layers if base.experts is not None else 0)
    for heads in range(groups, _MOST_HEADS, groups):
        one, two = (parameters_at_work(_model(base, heads, layers)) for layers in (least, least + 1))
        if one > parameters * (1 + _OFF):
            return
        nearest = least + math.floor((parameters - one) / (two - one))
        for layers in (nearest, nearest + 1):
            if least <= layers <= _MOST_LAYERS:
                off = abs(math.log((one + (layers - least) * (two - one)) / parameters))
                aspect = math.log(heads / layers * base.layers / base.heads)
                yield off + _ASPECT * aspect**2, heads, layers


def at_width(base: Model, width: int) -> Model:
    """The base with as many more heads as make it `width` wide. Raises ConfigError for a width without such a shape."""
    groups = base.heads // base.num_kv_heads
    heads, rest = divmod(base.heads * width, base.hidden)
    if rest or not heads or heads % groups:
        step = base.hidden * groups // math.gcd(base.hidden * groups, base.heads)
        raise ConfigError(
            f"a width of {width} has no number of heads like those of the config, {base.heads} in {base.hidden}: use "
            f"multiples of {step}"
        )
    return _model(base, heads, base.layers)


def _model(base: Model, heads: int, layers: int) -> Model:
    width = base.hidden * heads // base.heads
    changed: dict[str, Any] = {"heads": heads, "hidden": width, "layers": layers}
    if base.kv_heads is not None:
        changed["kv_heads"] = heads * base.kv_heads // base.heads
    if base.encoder_layers:
        changed["encoder_layers"] = max(1, round(base.encoder_layers * layers / base.layers))
    if base.experts is not None and base.experts.ffn is not None:
        ffn = round(base.experts.ffn * width / base.hidden)
        changed["experts"] = base.experts.model_dump(mode="json") | {"ffn": ffn}
    if base.ffn is not None:
        changed["ffn"] = round(base.ffn * width / base.hidden)
    return validate(Model, {**base.model_dump(mode="json"), **changed}, "the ladder")
