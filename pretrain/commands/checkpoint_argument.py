"""Checkpoints that a command's CHECKPOINT_OR_RUN names, with checks of its overrides and of code that the run names."""

import argparse
import sys
from pathlib import Path

from pretrain.checkpoint.directory import locate
from pretrain.checkpoint.one_model import ModelOfRun
from pretrain.checkpoint.state import expected_config
from pretrain.config.patterns.function import trust_code, untrusted
from pretrain.config.run_config import RunConfig
from pretrain.config.sentence import shown
from pretrain.errors import ConfigError
from pretrain.process.ranks import global_rank

_MODEL_KEYS = ("parallel", "precision", "health", "model", "objective", "run.kernels", "run.deterministic")
"""Sections and keys that models are built from."""
REPORT_KEYS = ("data", "run.name", "evaluate.lanes")
"""Further sections and keys that reports depend on."""


def find_checkpoints(
    options: argparse.Namespace,
    overrides: list[str],
    one_rank: bool,
    further_keys: tuple[str, ...] = (),
    model: ModelOfRun | None = "all",
) -> tuple[list[Path], RunConfig]:
    """The checkpoints that `options.checkpoint` names, newest first, and their config with `overrides`, of the `model`
    of a run of two (`one_model`). Raises
    ConfigError for an override of a key that the command does not read (it reads those that build the model, and
    `further_keys`), and for a config that names code without `--trust-code`; with it, reports on stderr which code is
    run."""
    _check_overrides(overrides, (*_MODEL_KEYS, *further_keys))
    if options.trust_code:
        trust_code()
    candidates = locate(options.checkpoint)
    config = expected_config(candidates, overrides, one_rank, model)
    if functions := config.model.attention.functions:
        if not options.trust_code:
            raise ConfigError(untrusted(", ".join(functions)))
        if global_rank() == 0:
            print(f"runs code that the run's config names: {', '.join(functions)}", file=sys.stderr)
    return candidates, config


def _check_overrides(overrides: list[str], read: tuple[str, ...]) -> None:
    for override in overrides:
        key, equals, _ = override.partition("=")
        known = key.partition(".")[0] in RunConfig.model_fields
        if equals and known and not any(key == one or key.startswith(f"{one}.") for one in read):
            raise ConfigError(
                f"{shown(key)} changes nothing here: leave it out. Keys that have an effect: {', '.join(read)}"
            )
