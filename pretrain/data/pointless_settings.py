"""Settings that a new run is refused for, as they do nothing in a run of its kind, or leave it nothing to learn.

A run that has begun keeps its settings: for it, these are warnings (`doubtful_settings.py`, with those that may be
meant)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_pipeline.dataset.storage import local_path
from data_pipeline.recipes.labelled import LabelledObjective
from pretrain.config.optimizer import MuonOptimizer
from pretrain.config.profile import Profile
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec.modules import parameter_specs
from pretrain.run_dir.paths import RunDir
from pretrain.run_length.segments import run_length

_LOST, _GROWN = 0.05, 100.0  # singular values of an update of Muon, which are to be near 1


def check_new_run(config: RunConfig) -> None:
    """Raises ConfigError for settings without a point, if the run has not begun. What hangs on sizes that the data
    decides is checked where `config` is resolved."""
    if config.run.branch_from is not None or RunDir(config.run.dir).has_begun:
        return
    for sentence in pointless_settings(config):
        raise ConfigError(sentence)


def pointless_settings(config: RunConfig) -> Iterator[str]:
    """Sentences on settings without a point: each says which it is, and what to do."""
    yield from _fields(config)
    yield from _trained_parts(config)
    yield from _evaluation(config)
    yield from _optimizer(config)
    yield from _lengths(config)
    yield from _place(config)


def _fields(config: RunConfig) -> Iterator[str]:
    """Fields of rows that are read as two things."""
    for objective in (config.objective, *(source.objective for source in config.data.sources)):
        if not isinstance(objective, LabelledObjective) or objective.name == "text_to_text":
            continue  # a text may be its own target, to learn to copy
        named: dict[str, str] = {}
        for key in objective.field_keys:
            field = getattr(objective, key)
            if field is None or field not in objective.fields:
                continue
            if field in named:
                yield (
                    f"objective.{named[field]} and objective.{key} both name the field {field!r}: a model that reads "
                    "what it is to answer learns nothing else, so name another field for one of them"
                )
            named[field] = key


def _trained_parts(config: RunConfig) -> Iterator[str]:
    """Parts that are trained of a model whose other weights were never trained, and updates larger than weights."""
    finetune, model = config.finetune, config.model
    drawn = config.run.start_from is None and config.distillation.start_layers is None
    for key, frozen in (
        ("finetune.lora", finetune.lora is not None),
        ("finetune.adapters", finetune.adapters is not None),
        ("finetune.train=top", finetune.train == "top"),
    ):
        if frozen and drawn and config.run.branch_from is None:
            yield (
                f"{key} freezes most weights, which without run.start_from are random and would stay so: name a "
                "checkpoint to start from, or leave it out"
            )
    if finetune.lora is None or not config.is_resolved:
        return
    specs = {spec.name: spec for spec in parameter_specs(model)}
    for name, spec in specs.items():
        layer, is_lora, _ = name.partition(".lora_a.weight")
        if not is_lora:
            continue
        inputs, outputs = spec.shape[-1], specs[f"{layer}.lora_b.weight"].shape[-2]
        if finetune.lora.rank > min(inputs, outputs):
            yield (
                f"finetune.lora.rank={finetune.lora.rank} is more than a matrix of {outputs} x {inputs} can have, as "
                f"that of {layer}: set {min(inputs, outputs)} or less, or leave the layer out of finetune.lora.targets"
            )
            return


_OF_TEXT_FIGURES: tuple[tuple[str, set[str], tuple[str, ...]], ...] = (
    ("normalization", {"exact_match", "f1_of_tokens"}, ("spans", "text_to_text")),
    ("words", {"rouge1", "rouge2", "rougeL", "rougeLsum"}, ("instructions",)),
    ("bleu_tokenize", {"bleu"}, ()),
)
"""key of `evaluate`, the figures that it is of, and the objectives that have one of them by default"""


def _evaluation(config: RunConfig) -> Iterator[str]:
    """Keys of `evaluate` and `profile` that do nothing for a run of this kind."""
    evaluate, objective = config.evaluate, config.objective
    figures = {name.rpartition("/")[2] for name in evaluate.figures}
    if evaluate.positive is not None and (objective.name != "classification" or "f1" not in figures):
        yield (
            f"evaluate.positive={evaluate.positive} is the class of the figure f1 of classification, which this run "
            "does not compute: leave it out, or name f1 in evaluate.figures"
        )
    writes = objective.labelled and config.model.task_head is None
    if evaluate.new_tokens is not None and not writes:
        yield (
            f"evaluate.new_tokens={evaluate.new_tokens} is of answers that a fine-tuned model writes, and with "
            f"objective.name={objective.name} it writes none: leave it out"
        )
    for key, its_figures, by_default in _OF_TEXT_FIGURES:
        value = getattr(evaluate, key)
        computed = not its_figures.isdisjoint(figures) if figures else objective.name in by_default
        if value != type(evaluate).model_fields[key].default and not computed:
            yield (
                f"evaluate.{key}={value} is of the figures {', '.join(sorted(its_figures))}, which this run does not "
                "compute: leave it out, or name one in evaluate.figures"
            )
    if evaluate.lanes != 1 and not config.heldout_lanes:
        yield (
            f"evaluate.lanes={evaluate.lanes} divides held-out text among the memories of a model with "
            "model.memory_length, which this run has not: leave it out"
        )
    if config.profile.ranks != Profile().ranks and not config.profile.steps:
        yield "profile.ranks is for the steps of profile.steps, and there are none: name some, or leave it out"


def _optimizer(config: RunConfig) -> Iterator[str]:
    """Settings of Muon that do nothing, or leave nothing of an update."""
    muon = config.optimizer
    if not isinstance(muon, MuonOptimizer):
        return
    defaults = type(muon).model_fields
    if muon.adjust_lr_fn == "original" and muon.update_rms != defaults["update_rms"].default:
        yield (
            f"optimizer.update_rms={muon.update_rms:g} does nothing with optimizer.adjust_lr_fn=original: leave one "
            "of them out"
        )
    if not muon.ns_final_steps and muon.ns_final_coefficients != defaults["ns_final_coefficients"].default:
        yield (
            "optimizer.ns_final_coefficients does nothing with optimizer.ns_final_steps=0: leave it out, or set how "
            "many steps have them"
        )
    least, most = singular_values(muon)
    if not least > _LOST or not most < _GROWN:
        yield (
            f"optimizer.ns_coefficients and ns_steps bring singular values to between {least:.3g} and {most:.3g}, and "
            "updates are orthogonal where they are near 1: leave them out"
        )


def singular_values(muon: MuonOptimizer) -> tuple[float, float]:
    """The least and the most that the Newton-Schulz steps make of singular values from 0.1 to 1; nan or infinite where
    they do not stay finite."""
    values = np.linspace(0.1, 1, 91)
    with np.errstate(all="ignore"):
        for a, b, c in muon.steps:
            values = a * values + b * values**3 + c * values**5
    values = np.abs(values)
    return float(values.min()), float(values.max())


def _lengths(config: RunConfig) -> Iterator[str]:
    """Settings that lie beyond a row, or beyond the end of the run."""
    mtp, finetune = config.model.mtp, config.finetune
    if mtp is not None and mtp.num_layers >= config.sequence_length:
        yield (
            f"model.mtp.num_layers={mtp.num_layers} further tokens lie beyond a row of {config.sequence_length} "
            f"positions: set {config.sequence_length - 1} or less"
        )
    if finetune.unfreeze_steps and config.train.epochs is None:
        steps, _ = run_length(config)
        if finetune.unfreeze_steps >= steps:
            yield (
                f"finetune.unfreeze_steps={finetune.unfreeze_steps} lets no layer below the head join before the run "
                f"ends, after {steps:,} steps: lower it, or set finetune.train=head"
            )


def _place(config: RunConfig) -> Iterator[str]:
    """A run in the directory of its own data, which whoever writes the data again replaces."""
    run_dir = Path(config.run.dir).expanduser().absolute()
    for source in config.data.resolved_sources:
        directory = local_path(source.path)
        if directory is None:
            continue
        if directory.absolute() in (run_dir, *run_dir.parents):
            yield (
                f"run.dir={config.run.dir} lies in {source.path}, the directory of the run's own data: choose a "
                "directory outside it"
            )
