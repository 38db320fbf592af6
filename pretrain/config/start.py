"""Settings and files that a run takes from the one whose weights it starts from (`run.start_from`), besides them: the
model, and for labelled data the tokenizer and the chat template; and the facts that it records of its teacher
(`distillation.teacher`)."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretrain.errors import ConfigError
from pretrain.run_dir.paths import MANIFEST, RECORD, SOURCE_TOKENIZER, TOKENIZER, RunDir, complete_checkpoints, run_of

_LARGEST_RECORD_BYTES = 16 << 20


def recorded_model(start_from: str) -> dict[str, Any]:
    """`model` of the newest checkpoint of a run, or of one checkpoint, as it was recorded. Raises ConfigError if
    there is none, or its record cannot be read."""
    for checkpoint in _checkpoints(start_from):
        try:
            with (checkpoint / RECORD).open("rb") as file:
                model = json.loads(file.read(_LARGEST_RECORD_BYTES))["config"]["model"]
        except OSError as error:
            raise ConfigError(f"run.start_from: {error.filename} cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError):
            continue  # damaged: its weights will not be taken either
        if isinstance(model, dict):
            return model
    raise ConfigError(f"run.start_from={start_from} has no checkpoint with a readable {RECORD}: name another")


def is_imported(start_from: str) -> bool:
    """Whether the newest checkpoint of a run, or one checkpoint, is one that was imported and not trained here. False
    where there is none: a run that resumes needs it no longer."""
    try:
        record = json.loads((next(_checkpoints(start_from)) / RECORD).read_bytes())
        return bool(record["step"] == 0)
    except (ConfigError, OSError, ValueError, KeyError, TypeError):
        return False


def without_mtp(model: Any) -> Any:
    """A recorded `model` without modules for further tokens, which training alone reads."""
    return {key: value for key, value in model.items() if key != "mtp"} if isinstance(model, dict) else model


def recorded_teacher(teacher: str) -> tuple[dict[str, Any], str, list[Any] | None]:
    """`model`, digest, and labels (None: it has no classes) of the newest checkpoint of a run, or of one checkpoint.
    The digest is that of the manifest, which has those of all files. Raises ConfigError if there is no checkpoint that
    can be read, or if it has two models, low-rank updates or adapters."""
    checkpoint = next(_checkpoints(teacher, "distillation.teacher"))
    try:
        with (checkpoint / RECORD).open("rb") as file:
            config = json.loads(file.read(_LARGEST_RECORD_BYTES))["config"]
        model, finetune = config["model"], config["finetune"]
        added = [finetune.get(name) for name in ("lora", "adapters")]
        digest = hashlib.sha256((checkpoint / MANIFEST).read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise ConfigError(f"distillation.teacher: {error.filename} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"distillation.teacher={teacher} has no readable {RECORD}: name another checkpoint") from None
    if config.get("generator") is not None or added != [None, None]:
        raise ConfigError(
            f"distillation.teacher={teacher} has a generator, low-rank updates or adapters, and a teacher is a model "
            "of its own: name one that was pretrained, or fine-tuned as a whole"
        )
    return without_mtp(model), digest, config.get("objective", {}).get("labels")


def teacher_checkpoint(teacher: str) -> Path:
    """The checkpoint that `recorded_teacher` reads."""
    return next(_checkpoints(teacher, "distillation.teacher"))


def continued_checkpoint(run_dir: str, branch_from: str | None) -> Path | None:
    """The checkpoint that a run continues: the newest of its own, or that of the run that it branches from. None: it
    has none, or none that can be found, as is said where it resumes."""
    for path in (run_dir, branch_from):
        try:
            if path is not None:
                return next(_checkpoints(path))
        except ConfigError:
            continue
    return None


def recorded_tokenizer(start_from: str) -> Path:
    """File of the tokenizer of the newest checkpoint of a run, or of one checkpoint."""
    return next(_checkpoints(start_from)) / TOKENIZER


def recorded_source_tokenizer(start_from: str) -> Path | None:
    """File of the tokenizer of inputs of the newest checkpoint of a run, or of one checkpoint; None: it has none."""
    path = next(_checkpoints(start_from)) / SOURCE_TOKENIZER
    return path if path.is_file() else None


def recorded_chat_template(start_from: str) -> Path | None:
    """File of the chat template of the run of the newest checkpoint; None: it has none."""
    path = recorded_run(start_from).chat_template
    return path if path.is_file() else None


def recorded_run(start_from: str) -> RunDir:
    """Run of the newest checkpoint. Raises ConfigError if there is none."""
    return run_of(next(_checkpoints(start_from)))


def _checkpoints(start_from: str, key: str = "run.start_from") -> Iterator[Path]:
    """Newest first. Raises ConfigError if there is none."""
    path = Path(start_from).expanduser()
    try:
        found = [path] if (path / RECORD).is_file() else complete_checkpoints(RunDir(path).checkpoints)[::-1]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}={start_from} cannot be read ({error})") from None
    if not found:
        raise ConfigError(f"{key}={start_from} is neither a checkpoint nor a run that has one")
    yield from found
