"""A ladder: runs of several sizes and lengths, planned so that a scaling law can be fitted to their losses.

Each size and seed has a *stem*: a run that warms up, stays at its peak, and decays over its last fifth at the greatest
number of tokens (warm-up, stable, decay: Hu et al. 2024, arXiv 2404.06395; a fifth: Hägele et al. 2024, arXiv
2405.18392). Each smaller number of tokens is a *branch*: it takes up the stem's checkpoint at four fifths of its own
length, and decays from there. So three lengths of 1, 2 and 4 cost 4.6, not 7."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from pretrain.config.load import validate
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.pages.numbers import compact
from pretrain.run_dir.paths import RunDir
from pretrain.scaling import rules
from pretrain.scaling.shape import shaped
from pretrain.scaling.size import parameters_at_work

DECAY = 0.2
_FINEST = 16  # parts that the shortest stable phase is saved in
_FEWEST_STEPS = 20
_MOST_PARAMETERS, _MOST_RUNS, _MOST_RATE = 1e14, 10_000, 1e6


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One config of a ladder."""

    name: str
    config: RunConfig
    parameters: int
    tokens: int
    flops: float
    """FLOPs that the run adds; for a branch, those of its own steps only"""
    stem: str | None
    """name of the run that it branches off"""


@dataclass(frozen=True, kw_only=True)
class LadderSpec:
    """Specification of a ladder."""

    sizes: tuple[float, ...]
    ratios: tuple[float, ...]
    """tokens per parameter"""
    seeds: tuple[int, ...]
    """number of seeds of each size"""
    rule: str
    runs_dir: str
    rates: tuple[float, ...] = (1.0,)
    """multiples of the rule's learning rate; several make a sweep"""


def ladder(base: RunConfig, spec: LadderSpec) -> list[PlannedRun]:
    """The runs, in an order in which each stem comes before its branches. `base` is resolved: its vocabulary is known.
    Raises ConfigError for sizes that no shape has."""
    base = rules.with_mup(spec.rule, base)
    if len(spec.seeds) not in (1, len(spec.sizes)):
        raise ConfigError(f"--seeds is one number, or one for each of the {len(spec.sizes)} sizes")
    counts = spec.seeds * len(spec.sizes) if len(spec.seeds) == 1 else spec.seeds
    models = [shaped(base.model, size) for size in spec.sizes]
    parameters = [parameters_at_work(model) for model in models]
    if len(set(parameters)) < len(parameters):
        raise ConfigError(f"two of the sizes have one shape, of {parameters} parameters: choose sizes further apart")
    runs: list[PlannedRun] = []
    for model, count in zip(models, counts, strict=True):
        for seed, rate in product(range(count), spec.rates):
            marks = (f"-s{seed}" if count > 1 else "") + (f"-r{rate:g}" if len(spec.rates) > 1 else "")
            runs += _stem_and_branches(base, model, seed=base.run.seed + seed, rate=rate, marks=marks, spec=spec)
    if len({run.name for run in runs}) < len(runs):
        raise ConfigError("two runs of this ladder have one name: choose rates or tokens per parameter further apart")
    return runs


def total_flops(runs: Sequence[PlannedRun]) -> float:
    return sum(run.flops for run in runs)


def check_limits(spec: LadderSpec) -> None:
    """Raises ConfigError for a ladder that is larger than any that can be run, and for seeds that are not counts."""
    if (most := max(spec.sizes)) > _MOST_PARAMETERS:
        raise ConfigError(
            f"--sizes: {most:.3g} parameters are more than the {_MOST_PARAMETERS:.0e} of the largest ladder"
        )
    if not all(1 / _MOST_RATE <= rate <= _MOST_RATE for rate in spec.rates):
        raise ConfigError(f"--rates are times the rule's rate, from {1 / _MOST_RATE:g} to {_MOST_RATE:g}")
    if (runs := sum(spec.seeds) * len(spec.ratios) * len(spec.rates)) > _MOST_RUNS:
        raise ConfigError(f"this ladder has {runs:,} runs or more: make one of at most {_MOST_RUNS:,}")
    if not all(spec.seeds):
        raise ConfigError("--seeds are numbers of at least 1")


def check_budget(runs: Sequence[PlannedRun], budget: float) -> None:
    """Raises ConfigError, with what the ladder costs without its largest size, if the runs take more FLOPs than
    `budget`."""
    total = total_flops(runs)
    if total <= budget:
        return
    largest = max(run.parameters for run in runs)
    rest = total_flops([run for run in runs if run.parameters < largest])
    raise ConfigError(
        f"this ladder takes {total:.3g} FLOPs, more than --budget {budget:.3g}: without its largest size, "
        f"{compact(largest)}, it takes {rest:.3g}"
    )


def _stem_and_branches(
    base: RunConfig, model: Model, *, seed: int, rate: float, marks: str, spec: LadderSpec
) -> list[PlannedRun]:  # fmt: skip
    parameters = parameters_at_work(model)
    settings = rules.settings(spec.rule, parameters, model.hidden, base)
    sequences, micro = rules.sequences(settings.batch_tokens, model.sequence_length, base.batch.micro_sequences)
    batch_tokens = sequences * model.sequence_length
    ratios = sorted(set(spec.ratios))
    steps = [math.ceil(ratio * parameters / batch_tokens) for ratio in ratios]
    if steps[0] < _FEWEST_STEPS:
        raise ConfigError(
            f"{compact(parameters)} parameters with {ratios[0]:g} tokens each are {steps[0]} steps of {batch_tokens:,} "
            f"tokens, too few to learn in: ask for more (--tokens-per-parameter), or another --rule"
        )
    every, begins = _saved_at(steps)
    warmup = rules.warmup_steps(settings.warmup_tokens, batch_tokens, steps[0])
    names = [f"{compact(parameters)}-x{ratio:g}{marks}" for ratio in ratios]
    flops = training_flops_per_token(model) * batch_tokens  # of a step
    tree = base.model_dump(mode="json")
    tree["model"] = model.model_dump(mode="json")
    tree["optimizer"]["learning_rate"] = float(f"{rate * settings.learning_rate:.4g}")
    tree["batch"] = {"sequences": sequences, "micro_sequences": micro, "ramp": None, "short": None}
    tree["schedule"] = _schedule(warmup, steps[-1] - begins[-1])
    tree["checkpoint"] |= {"every_steps": every, "keep": steps[-1] // every + 2}

    def run(at: int, begin: int) -> PlannedRun:
        tree["run"] |= {"name": names[at], "dir": f"{spec.runs_dir}/{names[at]}", "seed": seed}
        tree["train"] = {"steps": steps[at], "tokens": None}
        config = validate(RunConfig, tree, names[at])
        stem = names[-1] if begin else None
        return PlannedRun(
            name=names[at],
            config=config,
            parameters=parameters,
            tokens=steps[at] * batch_tokens,
            flops=flops * (steps[at] - begin),
            stem=stem,
        )

    planned = [run(len(ratios) - 1, 0)]
    for at, begin in enumerate(begins[:-1]):
        # The branch keeps the stem's settings and changes some of them from its first step on, by `run.change`.
        tree["run"] |= {
            "branch_from": str(RunDir(f"{spec.runs_dir}/{names[-1]}").checkpoint(begin)),
            "change": {
                "why": f"decay to {ratios[at]:g} tokens per parameter",
                "train": {"steps": steps[at], "tokens": None},
                "schedule": _schedule(warmup, steps[at] - begin),
            },
        }
        tree["checkpoint"] |= {"every_steps": 0, "keep": 1}
        planned.append(run(at, begin))
    return planned


def _schedule(warmup: int, decay: int) -> dict[str, object]:
    return {"name": "wsd", "warmup_steps": warmup, "decay_steps": decay, "final_fraction": 0.0}


def _saved_at(steps: Sequence[int]) -> tuple[int, list[int]]:
    """Number of steps between saves of the stem, as rarely as will do, and where each length begins to decay: at a
    fifth before its end, or up to a twentieth of its length earlier."""
    latest = [round(count * (1 - DECAY)) for count in steps]
    for saves in range(1, _FINEST + 1):
        every = max(1, latest[0] // saves)
        begins = [begin // every * every for begin in latest]
        if all(begin >= count * (0.95 - DECAY) for begin, count in zip(begins, steps, strict=True)):
            break
    return every, [*begins[:-1], latest[-1]]
