"""Runs that `pretrain verify` makes: a config on one rank and on each layout."""

from collections.abc import Sequence
from dataclasses import dataclass

from pretrain.config.load import validate
from pretrain.config.optimizer import AdamOptimizer, AdamWOptimizer, MuonOptimizer
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import resolve, with_teacher
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, plan_layout, settings_on
from pretrain.layout.names import expert_layouts_to_verify, layouts_to_verify, short_name
from pretrain.verify.shrink import shrink, with_layers

_LEARNING_RATE = 1e-4

ONE_RANK = Layout(world=1)


@dataclass(frozen=True)
class Job:
    """One row of the table: a layout in a precision."""

    layout: Layout
    config: RunConfig
    reference: RunConfig
    """config that it is compared with: one rank in fp32, another micro-batch size, no recomputation, plain kernels,
    padding computed"""

    @property
    def title(self) -> str:
        return short_name(self.layout)


def plan(config: RunConfig, layouts: Sequence[Layout], full: bool = False) -> list[Job]:
    """Jobs in order: one rank with another micro-batch size, then the layouts; all in fp32 and then in the config's own
    precision if that differs. The config is shrunk to as many layers as each layout needs, and one rank runs for each
    number of layers; with `full` it keeps its sizes. Raises ConfigError for a layout that the config can't run on."""
    if isinstance(config.optimizer, MuonOptimizer) and config.optimizer.ns_precision == "bf16":
        raise ConfigError(
            "optimizer.ns_precision=bf16 rounds updates to 1e-2, which hides faults of layouts: verify the run with "
            "optimizer.ns_precision=fp32 or bf16x3"
        )
    if isinstance(config.optimizer, AdamOptimizer | AdamWOptimizer) and config.optimizer.moments != "fp32":
        raise ConfigError(
            "optimizer.moments=bf16 rounds a few moments to another value where sums have another order, and moves "
            "their updates by up to 1e-2, which hides faults of layouts: verify the run with optimizer.moments=fp32"
        )
    chosen = list(dict.fromkeys(layouts))
    small = config if full else shrink(config, chosen)
    sized = [(layout, small if full else with_layers(small, layout)) for layout in chosen]
    jobs = []
    for layers in sorted({sizes.model.layers for _, sizes in sized}):
        alike = [(layout, sizes) for layout, sizes in sized if sizes.model.layers == layers]
        sizes = alike[0][1]
        # Another micro-batch size than the layouts', so that the comparison shows it changes nothing.
        reference = _reference(sizes, 1 if full else 2 * sizes.batch.micro_sequences)
        jobs += [
            Job(layout, _on_layout(sizes, layout, precision, sizes.batch.micro_sequences), reference)
            for precision in dict.fromkeys(("fp32", config.precision))
            for layout in dict.fromkeys((ONE_RANK, *(layout for layout, _ in alike)))
        ]
    for job in jobs:
        plan_layout(job.reference, ONE_RANK.world)
        plan_layout(job.config, job.layout.world)
    return jobs


def resolve_config(config: RunConfig, full: bool) -> RunConfig:
    """Resolves the data, if the config names any. Raises ConfigError if `full` keeps a vocabulary that is not known."""
    if config.data.resolved_sources:
        return resolve(config)
    config = with_teacher(config)
    if full and config.model.vocabulary is None:
        raise ConfigError("--full keeps the vocabulary, and the config has none: set data.path or model.vocabulary")
    return config


def layouts_that_fit(config: RunConfig, ranks: int, full: bool) -> tuple[list[Layout], list[Layout]]:
    """Layouts of every kind on `ranks` ranks: those that the config can run on, and the others. Raises ConfigError if
    it can run on none."""
    every = layouts_to_verify(ranks)
    if config.model.experts is not None:
        every += expert_layouts_to_verify(ranks)
    fit = [layout for layout in every if fits(config, layout, full)]
    if not fit:
        hint = " as it is: leave out --full" if full else ": name one with --layouts to see why"
        raise ConfigError(f"this config runs on no layout of {ranks} ranks{hint}")
    return fit, [layout for layout in every if layout not in fit]


def fits(config: RunConfig, layout: Layout, full: bool) -> bool:
    """Whether `config` can run on `layout`, shrunk or, if `full`, as it is."""
    try:
        plan(config, [layout], full)
    except ConfigError:
        return False
    return True


def _reference(config: RunConfig, micro_sequences: int) -> RunConfig:
    tree = _on_layout(config, ONE_RANK, "fp32", micro_sequences).model_dump(mode="json")
    tree["parallel"]["recompute"] = "none"
    tree["run"]["kernels"] = "plain"
    if config.objective.pads_to_longest:
        tree["objective"]["padding"] = "max_length"
    return validate(RunConfig, tree, "the reference")


def _on_layout(config: RunConfig, layout: Layout, precision: str, micro_sequences: int) -> RunConfig:
    """`config` on `layout`, with learning rates that fall from step to step: during warm-up updates may be too small
    to compare, and at a high rate training amplifies rounding. Raises ConfigError for a layout that it can't use."""
    tree = config.model_dump(mode="json")
    tree["precision"] = precision
    if precision != "fp16":
        del tree["loss_scale"]
    tree["batch"]["micro_sequences"] = micro_sequences
    tree["schedule"] = {"name": "inverse_sqrt", "warmup": "none", "warmup_steps": 1}
    tree["optimizer"]["learning_rate"] = min(_LEARNING_RATE, config.optimizer.learning_rate)
    tree["parallel"] = settings_on(config.parallel, layout)
    return validate(RunConfig, tree, f"--layouts {layout}")
