"""What `pretrain verify` runs: a config made small enough to run where it is called, on one rank and on each layout.

What can go wrong on a layout is kept: the family, objective, attention patterns, norms, ties, dropout, optimizer and
precision. Sizes are only as large as the layouts need to divide them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.plan.layout import Layout, plan_layout
from pretrain.plan.layout_names import short

_LENGTH, _HEADS, _HEAD_WIDTH, _VOCABULARY, _ROWS = 64, 4, 16, 500, 8
_MICRO_SEQUENCES = 2
_WIDEST = 8  # feed-forward layers, as multiples of the width: T5 11B's are 64 of it
_LEARNING_RATE = 1e-4
_TIMEOUT_S = 120  # that the others wait for a rank that a faulty layout keeps from going on
_REFERENCE_MICRO_SEQUENCES = 1  # another size than the layouts', so that they show it changes nothing

ONE_RANK = Layout(world=1, tensor=1, pipeline=1, virtual=1, sequence=False, zero=0)


@dataclass(frozen=True)
class Job:
    """One row of the table: a layout in a precision."""

    layout: Layout
    config: RunConfig

    @property
    def title(self) -> str:
        return short(self.layout)


def shrink(config: RunConfig, layouts: Sequence[Layout]) -> RunConfig:
    """The smallest config of the same kind that every one of `layouts` can divide."""
    tree = config.model_dump(mode="json")
    model = config.model
    tensor = lcm(*(layout.tensor for layout in layouts))
    chunks = lcm(*(layout.pipeline * layout.virtual for layout in layouts), len(model.attention.pattern))
    slices = lcm(*(layout.tensor * layout.context for layout in layouts))
    heads = lcm(_HEADS, slices)
    hidden = heads * _HEAD_WIDTH
    length = lcm(_LENGTH, slices)
    has_data = bool(config.data.resolved_sources)
    tree["model"] |= {
        "layers": max(2, -(-chunks // 2) if model.is_encoder_decoder else chunks),
        "heads": heads,
        "hidden": hidden,
        "head_dim": None,
        "target_length": length if model.is_encoder_decoder else None,
        "ffn": lcm(min(_WIDEST, max(1, round(model.ffn_width / model.hidden))) * hidden, tensor),
        "sequence_length": length,
        "vocabulary": model.vocabulary if has_data else _VOCABULARY,
        "vocabulary_multiple": lcm(model.vocabulary_multiple, tensor),
    }
    if model.is_encoder_decoder:
        tree["model"]["encoder_layers"] = tree["model"]["layers"]
    tree["model"]["attention"]["window"] = max(2, model.attention.window * length // model.sequence_length)
    groups = (x.data * _MICRO_SEQUENCES * (x.pipeline if x.virtual > 1 else 1) for x in layouts)
    tree["health"]["timeout_s"] = min(_TIMEOUT_S, config.health.timeout_s)
    tree["batch"] = {"sequences": lcm(_ROWS, *groups), "micro_sequences": _MICRO_SEQUENCES}
    return validate(RunConfig, tree, "the config made small")


def plan(config: RunConfig, layouts: Sequence[Layout]) -> tuple[Job, list[Job]]:
    """The reference (one rank, fp32) and what is compared with it: one rank again with micro-batches of another size,
    then each layout; all in fp32 and then, where the config says so, in its own precision. Raises ConfigError for a
    layout that the config can't run on."""
    reference = Job(ONE_RANK, _place(config, ONE_RANK, "fp32", _REFERENCE_MICRO_SEQUENCES))
    jobs = [
        Job(layout, _place(config, layout, precision, config.batch.micro_sequences))
        for precision in dict.fromkeys(("fp32", config.precision))
        for layout in dict.fromkeys((ONE_RANK, *layouts))
    ]
    for job in (reference, *jobs):
        plan_layout(job.config, job.layout.world)
    return reference, jobs


def fits(config: RunConfig, layout: Layout) -> bool:
    """Whether `config` can run on `layout` as it is."""
    try:
        plan_layout(_place(config, layout, config.precision, config.batch.micro_sequences), layout.world)
    except ConfigError:
        return False
    return True


def _place(config: RunConfig, layout: Layout, precision: str, micro_sequences: int) -> RunConfig:
    """`config` on `layout`, at one learning rate throughout: during warm-up updates may be too small to see, and at a
    high rate training amplifies rounding. Raises ConfigError where the layout asks for what there is not."""
    tree = config.model_dump(mode="json")
    tree["precision"] = precision
    if precision != "fp16":
        del tree["loss_scale"]
    tree["batch"] |= {"micro_sequences": micro_sequences, "ramp": None}
    tree["schedule"] = {"name": "constant"}
    tree["optimizer"]["learning_rate"] = min(_LEARNING_RATE, config.optimizer.learning_rate)
    tree["parallel"] |= {
        "tensor": layout.tensor,
        "context": layout.context,
        "sequence": layout.sequence,
        "pipeline": layout.pipeline,
        "virtual": layout.virtual,
        "zero": layout.zero,
        "zero_engine": layout.zero_engine,
        "offload_optimizer": config.parallel.offload_optimizer and layout.shards_by_deepspeed,
        "hpz": config.parallel.hpz if layout.zero == 3 and layout.replicas % config.parallel.hpz == 0 else 1,
        "overlap": None if layout.zero == 1 and layout.shards_by_deepspeed else config.parallel.overlap,
        "offload_parameters": config.parallel.offload_parameters and layout.zero == 3,
    }
    return validate(RunConfig, tree, f"--layouts {layout}")
