"""What commands that open a run's checkpoint share: which keys they take, and whose code they run."""

import argparse
import sys
from pathlib import Path

from pretrain.checkpoint.directory import locate
from pretrain.checkpoint.state import expected_config
from pretrain.config.patterns.function import trust_code, untrusted
from pretrain.config.run_config import RunConfig
from pretrain.config.sentence import shown
from pretrain.errors import ConfigError
from pretrain.process.ranks import global_rank

_USED = ("parallel", "precision", "health", "model", "objective", "run.kernels", "run.deterministic")
"""Sections and keys that models are built from."""
SCORING = ("data", "run.name")
"""Further sections and keys that reports depend on."""


def open_run(
    options: argparse.Namespace, overrides: list[str], one_rank: bool, uses: tuple[str, ...] = ()
) -> tuple[list[Path], RunConfig]:
    """The checkpoints that `options.checkpoint` means, newest first, and the config to expect. Raises ConfigError for
    an override of what the command does not read (`uses`: besides what builds the model), and for a config that names
    code without `--trust-code`; with it, says on stderr which code is run."""
    _check_used(overrides, (*_USED, *uses))
    if options.trust_code:
        trust_code()
    candidates = locate(options.checkpoint)
    config = expected_config(candidates, overrides, one_rank)
    if functions := config.model.attention.functions:
        if not options.trust_code:
            raise ConfigError(untrusted(", ".join(functions)))
        if global_rank() == 0:
            print(f"runs code that the run's config names: {', '.join(functions)}", file=sys.stderr)
    return candidates, config


def _check_used(overrides: list[str], used: tuple[str, ...]) -> None:
    for override in overrides:
        key, equals, _ = override.partition("=")
        known = key.partition(".")[0] in RunConfig.model_fields
        if equals and known and not any(key == one or key.startswith(f"{one}.") for one in used):
            raise ConfigError(f"{shown(key)} changes nothing here: leave it out. What does: {', '.join(used)}")
