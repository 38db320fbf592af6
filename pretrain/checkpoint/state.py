"""What a checkpoint holds besides tensors: one small record, as JSON beside them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pretrain.config.load import validate
from pretrain.config.schema import RunConfig
from pretrain.errors import ConfigError, RunError

RECORD = "record.json"
TOKENIZER = "tokenizer.model"

# A run is the same run only if these agree with its checkpoint. Layout, micro-batch, logging and the like may change.
_DEFINING = ("model", "objective", "optimizer", "schedule", "precision")


@dataclass(frozen=True)
class Record:
    """Where a run stands after `step` optimizer steps. Random state is a function of (seed, step), the learning rate
    and batch size of `tokens`, so nothing else needs saving."""

    step: int
    updates: int
    """steps that changed the weights: all but the skipped ones"""
    tokens: int
    cursor: dict[str, Any]
    """the data's own record (data_pipeline.batch.Cursor)"""
    config: dict[str, Any]
    """the resolved config"""
    layout: str
    """for information: a checkpoint is read by any layout"""
    versions: dict[str, str]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Record":
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path} is not a checkpoint's record ({error})") from None


def complete(directory: Path) -> list[Path]:
    """The finished checkpoints in a run's `checkpoints/`, oldest first. Temporary names were never finished."""
    return sorted(p for p in directory.glob("step-*") if p.is_dir() and p.name.removeprefix("step-").isdigit())


def locate(path: Path) -> Path:
    """A checkpoint, from its own path or from that of a run (its newest). Raises ConfigError if there is none."""
    if (path / RECORD).exists():
        return path
    found = complete(path / "checkpoints")
    if not found:
        raise ConfigError(f"{path} is neither a checkpoint nor a run that has one")
    return found[-1]


def scoring_config(checkpoint: Path, overrides: list[str], one_rank: bool) -> RunConfig:
    """The config a checkpoint was trained with, for scoring: without interleaving and sequence parallelism, which
    change no number; on a layout of one rank if `one_rank`; then changed by `overrides`."""
    tree = Record.read(checkpoint / RECORD).config
    tree["parallel"] |= {"virtual": 1, "sequence": False, "recompute": "none"}
    if one_rank:
        tree["parallel"] |= {"tensor": 1, "pipeline": 1}
    return validate(RunConfig, tree, str(checkpoint / RECORD), overrides)


def check_same_run(record: Record, config: RunConfig) -> None:
    """Raises ConfigError if `config` would not continue the run of `record`, naming the first key that differs."""
    now = config.model_dump(mode="json")
    then = record.config
    for section in _DEFINING:
        _compare(section, then.get(section), now[section])
    _compare("run.seed", then["run"]["seed"], now["run"]["seed"])
    for key in ("sequences", "ramp"):
        _compare(f"batch.{key}", then["batch"][key], now["batch"][key])
    decays = config.schedule.name != "constant" and config.schedule.decay_tokens is None
    if decays and then["train"] != now["train"]:
        raise ConfigError(
            f"train was {then['train']} and is now {now['train']}, and without schedule.decay_tokens the learning rate "
            "decays to the end of training: keep the length, or start a new run with schedule.decay_tokens set"
        )


def _compare(key: str, then: Any, now: Any) -> None:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in now:
            _compare(f"{key}.{name}", then.get(name), now[name])
    elif then != now:
        raise ConfigError(
            f"this run was started with {key}={then}, and the config now says {now}: "
            "set it back, or use another run.dir for a new run"
        )
