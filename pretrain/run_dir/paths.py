"""Names and paths of everything in a run's directory, `run.dir`.

    RunDir(config.run.dir).events       # the path of events.jsonl
    checkpoint_name(100)                # step-00000100

Formats are documented where they are written: `records.py` (metrics.jsonl, events.jsonl), `heartbeat.py`,
`checkpoint/files.py`. The package `launch` owns the content of `launch/`, the evaluation that of `reports/`.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

CONFIG = "config.yaml"
"""File of the resolved config, in `run.dir` and in its `launch/`."""
RECORD, TOKENIZER = "record.json", "tokenizer.model"
"""Files of a checkpoint besides its tensors: see `checkpoint/state.py` and `data_pipeline/tokenizers`."""
SOURCE_TOKENIZER = "source-tokenizer.model"
"""File of a checkpoint whose model reads inputs in another vocabulary (`data.source_tokenizer`): their tokenizer."""
MANIFEST = "manifest.json"
"""File of a checkpoint with the digests of all others (`checkpoint/files.py`)."""

BEST = "best"
"""Link in a run's `checkpoints/` to the best one (`checkpoint.best`)."""

_COMPLETE = re.compile("step-([0-9]+)")
_FOLDERS = ("checkpoints", "reports", "launch", "hangs", "profile", "tensorboard", "wandb")


class RunDir:
    """Directory of a run. Nothing is read or created by asking for a path."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def config(self) -> Path:
        """Resolved config, written as the run starts or resumes."""
        return self.path / CONFIG

    @property
    def metrics(self) -> Path:
        """One JSON line per step."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """One JSON line per event."""
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Checkpoint after `step` optimizer steps."""
        return self.checkpoints / checkpoint_name(step)

    @property
    def reports(self) -> Path:
        """Folder of evaluation reports."""
        return self.path / "reports"

    @property
    def finetune_report(self) -> Path:
        """Folder of the report of a fine-tuned model's answers."""
        return self.reports / "finetune"

    @property
    def launch(self) -> Path:
        """Folder of the records of `pretrain launch`."""
        return self.path / "launch"

    @property
    def heartbeat(self) -> Path:
        """Last sign of life of the run."""
        return self.path / "heartbeat.json"

    @property
    def hangs(self) -> Path:
        """Folder of hang reports."""
        return self.path / "hangs"

    def hang_folder(self, step: int, attempt: str) -> Path:
        """Folder of the hang reports that ranks of an attempt write at `step`."""
        return self.hangs / f"{checkpoint_name(step)}-{attempt}"

    def hang_folders(self, attempt: str) -> list[Path]:
        """Existing folders of hang reports of an attempt, by step."""
        return sorted(self.hangs.glob(f"step-*-{attempt}"))

    @property
    def chat_template(self) -> Path:
        """Chat template of an imported model, or the one that a run was fine-tuned with."""
        return self.path / "chat_template.jinja"

    @property
    def chat_settings(self) -> Path:
        """Variables and date by which the chat template renders, of a run that was not trained with it itself."""
        return self.path / "chat_settings.json"

    @property
    def source_model(self) -> Path:
        """File with what the model's folder in another library's format says besides weights, for an imported model or
        one that was trained from it (`interop/hf/source_model.py`)."""
        return self.path / "source_model.json"

    @property
    def has_begun(self) -> bool:
        """Whether a run has begun here: it has logged a step, or saved. False where the folder cannot be read."""
        try:
            return self.metrics.is_file() or bool(complete_checkpoints(self.checkpoints))
        except OSError:  # a circle of links, or what this user may not read
            return False

    @property
    def lock(self) -> Path:
        """File that the process which writes to the run holds locked."""
        return self.path / "lock"

    def tracker_run_id(self, tracker: str) -> Path:
        """File that holds the id of this run in a tracker, such as `mlflow`."""
        return self.path / f"{tracker}_run_id"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def profile(self) -> Path:
        """Folder of the traces of profiled steps."""
        return self.path / "profile"

    def trace(self, step: int, rank: int) -> Path:
        """Trace of a profiled step of a rank."""
        return self.profile / f"{checkpoint_name(step)}-rank-{rank:05d}.json.gz"

    def memory_snapshot(self, step: int, rank: int) -> Path:
        """History of the GPU's memory in a profiled step of a rank."""
        return self.profile / f"{checkpoint_name(step)}-rank-{rank:05d}-memory.pickle"

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders of a run, in which no other run may lie."""
        return tuple(self.path / name for name in _FOLDERS)


def checkpoint_name(step: int) -> str:
    """Name of the checkpoint after `step` optimizer steps."""
    return f"step-{step:08d}"


def checkpoint_step(name: str) -> int | None:
    """Step of a complete checkpoint by its name; None: it is incomplete, set aside, or something else."""
    found = _COMPLETE.fullmatch(name)
    return int(found[1]) if found is not None else None


def run_of(checkpoint: Path) -> RunDir:
    """Directory of the run that a checkpoint belongs to, links followed."""
    return RunDir(checkpoint.resolve().parent.parent)


def complete_checkpoints(checkpoints: Path) -> list[Path]:
    """Complete checkpoints in a run's `checkpoints/`, oldest first. Raises OSError if the folder cannot be read: one
    that this user may not list is not an empty one."""
    try:
        steps = {path: step for path in checkpoints.iterdir() if (step := checkpoint_step(path.name)) is not None}
        return sorted((path for path in steps if path.is_dir()), key=steps.__getitem__)
    except (FileNotFoundError, NotADirectoryError):
        return []


def incomplete_checkpoints(checkpoints: Path) -> list[Path]:
    """Checkpoints in a run's `checkpoints/` that are being written or removed, or that a crash left so."""
    return list(checkpoints.glob("step-*.tmp"))


def runs_below(folder: Path) -> list[Path]:
    """Runs directly in `folder`, sorted by name."""
    return sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))


def runs_within(path: Path, unreadable: Callable[[OSError], None]) -> list[Path]:
    """The run in `path`, or else all runs below it at any depth, sorted: folders with a config that `train` or `launch`
    wrote, and more of a run. None in the folders of a run, or behind a link to a folder. `unreadable` gets the error of
    each folder that cannot be read, whose runs are left out."""

    def check(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            unreadable(error)

    found = []
    for folder, below, files in os.walk(path, onerror=check):
        started = CONFIG in files and ("events.jsonl" in files or "checkpoints" in below)
        try:
            is_run = started or ("launch" in below and (Path(folder) / "launch" / CONFIG).is_file())
        except OSError as error:
            check(error)
            continue
        if is_run:
            found.append(Path(folder))
            below.clear()
    return sorted(found)
