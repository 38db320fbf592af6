"""Checkpoints that a command's CHECKPOINT_OR_RUN names, with checks of its overrides and of code that the run names."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from data_pipeline.errors import DataError
from pretrain.checkpoint.directory import locate
from pretrain.checkpoint.one_model import ModelOfRun
from pretrain.checkpoint.state import expected_config
from pretrain.config.patterns.function import trust_code, untrusted
from pretrain.config.run_config import RunConfig
from pretrain.config.sentence import shown
from pretrain.errors import ConfigError, RunError
from pretrain.process.ranks import global_rank, world_size

_MODEL_KEYS = ("parallel", "precision", "health", "model", "objective", "run.kernels", "run.deterministic")
"""Sections and keys that models are built from."""
REPORT_KEYS = ("data", "run.name", "evaluate.lanes")
"""Further sections and keys that reports depend on."""
_TRIES = 5  # saves of a run in the time that a checkpoint is read
Result = TypeVar("Result")


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
    candidates, config = use_newest(
        options.checkpoint,
        locate(options.checkpoint),
        lambda now: (now, expected_config(now, overrides, one_rank, model)),
    )
    if functions := config.model.attention.functions:
        if not options.trust_code:
            raise ConfigError(untrusted(", ".join(functions)))
        if global_rank() == 0:
            print(f"runs code that the run's config names: {', '.join(functions)}", file=sys.stderr)
    return candidates, config


def use_newest(path: Path, candidates: list[Path], use: Callable[[list[Path]], Result]) -> Result:
    """`use` of the checkpoints that `path` names. A run that is training removes old ones: if `use` fails and one of
    them is gone, it is called again with those that the run has now. Not among several ranks, of which one alone may
    have failed."""
    for _ in range(_TRIES):
        try:
            return use(candidates)
        except (ConfigError, RunError, DataError, OSError):
            if world_size() > 1 or all(checkpoint.exists() for checkpoint in candidates) or path in candidates:
                raise
            candidates = locate(path)
    return use(candidates)


def _check_overrides(overrides: list[str], read: tuple[str, ...]) -> None:
    for override in overrides:
        key, equals, _ = override.partition("=")
        known = key.partition(".")[0] in RunConfig.model_fields
        if equals and known and not any(key == one or key.startswith(f"{one}.") for one in read):
            raise ConfigError(
                f"{shown(key)} changes nothing here: leave it out. Keys that have an effect: {', '.join(read)}"
            )
