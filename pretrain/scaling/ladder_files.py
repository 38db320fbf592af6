"""Files of a ladder: a config for each run, task files of the commands that train them, and `ladder.json`."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pretrain.config.load import dump
from pretrain.config.run_config import RunConfig
from pretrain.scaling.ladder import LadderSpec, PlannedRun, check_budget, check_limits, ladder

STEMS, BRANCHES = "stems.txt", "branches.txt"
_FACTS = "ladder.json"


@dataclass(frozen=True)
class LadderFiles:
    """A ladder that was written."""

    runs: list[PlannedRun]
    task_files: tuple[Path, ...]
    """files with a `pretrain train` line for each run, in the order in which they must run"""


def write_ladder(base: RunConfig, spec: LadderSpec, out: Path, *, budget: float | None, command: str) -> LadderFiles:
    """Plans a ladder and writes its files to `out`. `budget`: most FLOPs of all runs together. `command`: the command
    line that made it, which the files name. Raises ConfigError, before anything is written, for a ladder that cannot be
    made or is larger than the limits."""
    check_limits(spec)
    runs = ladder(base, spec)
    if budget is not None:
        check_budget(runs, budget)
    configs = out / "configs"
    configs.mkdir(parents=True, exist_ok=True)
    files = {run.name: configs / f"{run.name}.yaml" for run in runs}
    for run in runs:
        role = f"branch of {run.stem}" if run.stem else "stem"
        files[run.name].write_text(
            f"# {run.name}: {run.parameters:,} parameters, {run.tokens:,} tokens; {role}. Rates, batch and warm-up by "
            f"the rule {spec.rule}.\n# Written by: {command}\n{dump(run.config)}",
            encoding="utf-8",
        )
    _write_tasks(out / STEMS, [files[run.name] for run in runs if not run.stem])
    _write_tasks(out / BRANCHES, [files[run.name] for run in runs if run.stem])
    _write_facts(out / _FACTS, runs, files, spec.rule, command)
    return LadderFiles(runs, tuple(path for path in (out / STEMS, out / BRANCHES) if path.exists()))


def _write_tasks(path: Path, configs: Sequence[Path]) -> None:
    """Writes a command for each config; removes the file of an earlier ladder if there is none."""
    if configs:
        lines = [f"pretrain train {shlex.quote(str(config))}\n" for config in configs]
        path.write_text("".join(lines), encoding="utf-8")
    else:
        path.unlink(missing_ok=True)


def _write_facts(path: Path, runs: Sequence[PlannedRun], files: Mapping[str, Path], rule: str, command: str) -> None:
    facts = [
        {
            "name": run.name,
            "config": str(files[run.name]),
            "run_dir": run.config.run.dir,
            "stem": run.stem,
            "parameters": run.parameters,
            "tokens": run.tokens,
            "flops": run.flops,
            "steps": run.config.train.steps,
        }
        for run in runs
    ]
    path.write_text(json.dumps({"made": command, "rule": rule, "runs": facts}, indent=1) + "\n")
