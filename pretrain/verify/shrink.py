"""Shrinking a config until it runs on the machine that verify is called on.

Everything that can go wrong on a layout is kept: the family, objective, attention patterns, norms, ties, dropout,
recomputation, optimizer and precision. Sizes are only as large as the layouts need to divide them, and as faults that a
smaller model would hide need to show: chunks of two layers, whose order can be wrong; more micro-batches than twice the
stages; inputs and targets of different lengths; heads in proportion to the config's; positions beyond a power of two.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from math import lcm
from typing import Any, Literal

from pretrain.config.load import validate
from pretrain.config.model import Model
from pretrain.config.part import SmallSizes
from pretrain.config.parts.registry import PARTS
from pretrain.config.patterns.base import width
from pretrain.config.run_config import RunConfig
from pretrain.layout.checks import FP8_BLOCK
from pretrain.layout.layout import Layout
from pretrain.model_spec.split import split_layers

MICRO_SEQUENCES = 2
_LENGTH, _HEADS, _HEAD_WIDTH, _VOCABULARY, _ROWS = 160, 4, 16, 500, 8
_CHUNK_LAYERS = 2
_WIDEST = 8  # feed-forward layers, as multiples of the width: T5 11B's are 64 of it
_HEAD_RATIOS = (0.5, 2.0)  # heads together, as multiples of the width: T5 11B's are 16 of it
_SMOOTH: dict[str, Literal["gelu", "gated_gelu"]] = {"relu": "gelu", "gated_relu": "gated_gelu"}
_STEPS = 1000
_TIMEOUT_S = 120  # wait for a rank that a faulty layout blocks


def shrink(config: RunConfig, layouts: Sequence[Layout]) -> RunConfig:
    """The smallest config of the same kind that all of `layouts` can divide, except for its layers (`with_layers`). Its
    batch grows, so that steps have several sizes, unless the model has memory across rows."""
    tree = config.model_dump(mode="json")
    model = config.model
    tensor = lcm(*(layout.tensor for layout in layouts))
    slices = lcm(*(layout.tensor * layout.context for layout in layouts))
    shares_keys = model.num_kv_heads < model.heads
    heads = _multiple(_HEADS, lcm(2 * slices if shares_keys else slices, model.attention.head_period))
    hidden = heads * _HEAD_WIDTH
    length = _multiple(_LENGTH, lcm(slices, model.sequence_length // model.layer_length))
    fp8 = config.precision == "fp8"
    block, share = (FP8_BLOCK, FP8_BLOCK * tensor) if fp8 else (2, lcm(2, tensor))
    tree["model"] |= {
        "heads": heads,
        "kv_heads": None if not shares_keys else 1 if model.num_kv_heads == 1 else heads // 2,
        "hidden": hidden,
        "embedding_size": None if model.embedding_size is None else hidden // 2,
        "head_dim": _head_width(model, block, share),
        "target_length": _target_length(config, length, slices) if model.is_encoder_decoder else None,
        # On which side of ReLU's kink an input lies that is nearly zero, rounding decides, for a gradient 1e-3 off.
        "activation": _SMOOTH.get(model.activation, model.activation),
        "ffn": lcm(min(_WIDEST, max(1, round(model.ffn_dim / model.hidden))) * hidden, share),
        "sequence_length": length,
        "memory_length": min(model.memory_length, length),
        "vocabulary": model.vocabulary if config.data.resolved_sources else _VOCABULARY,
        "cutoffs": _cutoffs(model, config),
        "vocabulary_multiple": lcm(model.vocabulary_multiple, tensor),
    }
    sizes = SmallSizes(
        hidden=hidden,
        ffn=tree["model"]["ffn"],
        length=length,
        head_width=_HEAD_WIDTH,
        layers=_CHUNK_LAYERS,
        share=share,
        expert_ranks=lcm(*(layout.expert for layout in layouts)),
        knows_words=bool(config.data.resolved_sources),
    )
    for part in PARTS.values():
        _change(tree, part.shrunk(model, sizes))
    attention = model.attention
    if attention.shares_window:
        tree["model"]["attention"]["window"] = width(attention.window, length, model.sequence_length)
    scaled = [pattern.scaled(length, model.sequence_length) for pattern in attention.pattern]
    tree["model"]["attention"]["pattern"] = [pattern.model_dump(mode="json") for pattern in scaled]
    tree["health"]["timeout_s"] = min(_TIMEOUT_S, config.health.timeout_s)
    tree["batch"] = _batch(layouts)
    if model.memory_length:  # rows continue each other in all steps
        tree["batch"]["ramp"] = None
    if config.objective.row_length is not None:
        tree["objective"]["sequence_length"] = None
    if config.train.epochs is not None:  # how many steps these are depends on the data, and some are made here
        tree["train"] = {"steps": _STEPS}
    if config.generator is not None:
        alike = config.generator.hidden == config.model.hidden
        wide = tree["model"]["hidden"] if alike else heads * _HEAD_WIDTH // 2
        tree["generator"] |= {"hidden": wide, "heads": heads, "ffn": lcm(2 * wide, share), "layers": None}
    if config.distillation.teacher is not None:
        teacher = shrink(config.teacher_config(), layouts).model
        # Weights are drawn here, so no layer begins with a teacher's.
        of_layers = {"start_layers": None, "match_layers": None}
        tree["distillation"] |= {"teacher_model": teacher.model_dump(mode="json"), **of_layers}
    return validate(RunConfig, tree, "the shrunk config")


def _change(tree: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Changes keys that the tree has."""
    for key, value in changes.items():
        if isinstance(value, Mapping):
            _change(tree[key], value)
        elif key in tree:
            tree[key] = value


def with_layers(small: RunConfig, layout: Layout) -> RunConfig:
    """`small` with the fewest layers that give each chunk of `layout` two and use every attention pattern."""
    tree = small.model_dump(mode="json")
    chunks = layout.pipeline * layout.virtual
    if not small.model.is_encoder_decoder:
        tree["model"]["layers"] = _multiple(len(small.model.attention.pattern), _CHUNK_LAYERS * chunks)
        if small.distillation.teacher is not None:  # which is deeper
            tree["distillation"]["teacher_model"]["layers"] = 2 * tree["model"]["layers"]
    else:
        layers = next(n for n in count(_CHUNK_LAYERS) if _smallest_chunk(small.model, n, chunks) >= _CHUNK_LAYERS)
        tree["model"] |= {"layers": layers, "encoder_layers": layers}
    return validate(RunConfig, tree, f"the config shrunk for {layout}")


def _cutoffs(model: Model, config: RunConfig) -> list[int]:
    """Clusters of words in proportion; where the data says how many words there are, those of the config."""
    if config.data.resolved_sources or not model.cutoffs:
        return model.cutoffs
    known = model.vocabulary or 2 * model.cutoffs[-1]
    scaled = [cutoff * _VOCABULARY // known for cutoff in model.cutoffs]
    return [max(cutoff, number) for number, cutoff in enumerate(scaled, 1)]


def _smallest_chunk(model: Model, layers: int, chunks: int) -> int:
    """Layers of the smallest chunk, where an encoder and a decoder of `layers` each share `chunks`."""
    if 2 * layers < _CHUNK_LAYERS * chunks:
        return 0
    return min(split_layers(model.model_copy(update={"layers": layers, "encoder_layers": layers}), chunks))


def _head_width(model: Model, block: int, share: int) -> int | None:
    """A multiple of `block`, or of `share` where all share a head of keys, which is divided. None: what the width and
    the number of heads say, as in the config; where that is not so, it is not made so by rounding."""
    ratio = model.heads * model.dim_per_head / model.hidden
    divided = model.num_kv_heads == 1 < model.heads
    if ratio == 1 and not divided:
        return None
    low, high = _HEAD_RATIOS
    width = block * round(_HEAD_WIDTH / block * min(high, max(low, ratio)))
    if width == _HEAD_WIDTH and ratio != 1:
        width += block
    return _multiple(width, share) if divided else width


def _target_length(config: RunConfig, length: int, slices: int) -> int:
    """The objective's target length for inputs of `length`, never equal to it: then half of the stream is no
    boundary."""
    needed = length // 2 if config.objective.name == "pairs" else config.objective.target_length(length)
    rounded = _multiple(needed, slices)
    return rounded + slices if rounded == length else rounded


def _batch(layouts: Sequence[Layout]) -> dict[str, object]:
    """A ramp: a first batch that gives each data rank more micro-batches than twice the stages, then a small one."""
    groups = (x.data * MICRO_SEQUENCES * (x.pipeline if x.virtual > 1 else 1) for x in layouts)
    few = lcm(_ROWS, *groups)
    most = max((2 * x.pipeline + 1) * x.data * MICRO_SEQUENCES for x in layouts)
    many = _multiple(max(most, 2 * few), few)
    ramp = {"start_sequences": few, "increment_sequences": many - few, "tokens": 1}
    return {"sequences": many, "micro_sequences": MICRO_SEQUENCES, "ramp": ramp}


def _multiple(at_least: int, of: int) -> int:
    return -(-at_least // of) * of
