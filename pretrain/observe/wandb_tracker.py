"""Weights & Biases as a tracker, with a server or without (`track.offline`). The package is imported when the run is
opened.

    wandb sync runs/book/wandb/offline-run-*      # uploads what was written offline
"""

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from data_pipeline.common.atomic import atomic_write
from data_pipeline.errors import ExitStatus
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.observe.points import DataInput, File, Point
from pretrain.observe.tracker import RunStatus, Tracker, public
from pretrain.run_dir.paths import RunDir

_EXIT: dict[RunStatus, int] = {"finished": 0, "stopped": ExitStatus.STOPPED, "failed": ExitStatus.FAILED}
_NOT_IN_PROJECTS, _PROJECT_LENGTH = "/\\#?%:", 128  # W&B's own limits
_FILES = "pretrain"
"""folder of the run's files that belong to no other folder, as W&B has a config.yaml of its own"""


class WandbTracker(Tracker):
    """A run in the project `track.experiment`. Entity, server and key are W&B's own settings (`wandb login`,
    WANDB_ENTITY, WANDB_BASE_URL)."""

    package, extra = "wandb", "wandb"
    close_s = 30.0

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._dir = RunDir(Path(config.run.dir).resolve())
        # WANDB_MODE counts, as in other programs that log there.
        self._offline = config.track.offline or os.environ.get("WANDB_MODE") in ("offline", "dryrun", "disabled")
        self._run: Any = None

    @property
    def service(self) -> str:
        return f"W&B {'offline in' if self._offline else 'for'} {self._dir.path}"

    @property
    def link(self) -> str | None:
        return f"W&B: {self._run.url}" if self._run is not None and self._run.url else None

    def check(self) -> None:
        project = self.config.track.experiment
        if not project or len(project) > _PROJECT_LENGTH or any(sign in project for sign in _NOT_IN_PROJECTS):
            raise ConfigError(
                f"track.experiment={project[:80]!r} is no name of a project of W&B: it needs 1 to {_PROJECT_LENGTH} "
                f"characters and none of {' '.join(_NOT_IN_PROJECTS)}"
            )

    def start(self, tags: Mapping[str, str]) -> None:
        from pretrain.observe.system_info import system_info  # imports torch

        id_file = self._dir.tracker_run_id("wandb")
        run_id = id_file.read_text().strip() if id_file.exists() else secrets.token_hex(4)
        facts = {"facts": {**system_info(), **tags}}
        self._run = self._open("train", id=run_id, resume=None if self._offline else "allow", config=facts)
        self._run.config.update(public(self.config).model_dump(mode="json"), allow_val_change=True)
        atomic_write(id_file, run_id.encode())

    def log_metrics(self, points: Sequence[Point]) -> None:
        for step, of_step in groupby(points, lambda point: point.step):
            self._run.log({"step": step, **{point.name: point.value for point in of_step}})

    def log_artifact(self, file: File) -> None:
        self._save(self._run, file.path, file.folder or _FILES)

    def log_dataset(self, data: DataInput) -> None:
        said = {"address": data.address, "fingerprint": data.fingerprint, **data.profile}
        self._run.config.update({"datasets": {data.name: said}}, allow_val_change=True)

    def finish(self, status: RunStatus) -> None:
        if status == "stopped":
            self._run.mark_preempting()  # which W&B shows as preempted, and any other status but 0 as failed
        self._run.finish(exit_code=_EXIT[status])

    def add_report(self, files: Sequence[Path], folder: str, scores: Mapping[str, float], step: int) -> None:
        """Adds a run of its own to the same group: W&B would call the training run running, then finished."""
        if not self._dir.tracker_run_id("wandb").exists():
            return
        run = self._open("eval", name=f"{self.config.run.name} {folder}")
        run.log({"step": step, **scores})
        for file in files:
            self._save(run, file, folder)
        run.finish()

    def _open(self, job_type: str, **settings: Any) -> Any:
        import wandb

        if not self._offline and not wandb.login(prompt=False, verify=False):
            raise RuntimeError("no API key: run `wandb login`, or set track.offline=true")
        # Nothing of the environment or the working directory, which hold secrets; nothing on the terminal.
        quiet = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, x_disable_meta=True,
            x_disable_machine_info=True,
        )  # fmt: skip
        run = wandb.init(
            project=self.config.track.experiment, group=self.config.run.name, job_type=job_type, dir=self._dir.path,
            mode="offline" if self.config.track.offline else None, settings=quiet, reinit="create_new",
            **{"name": self.config.run.name, **settings},
        )  # fmt: skip
        run.define_metric("*", step_metric="step")
        return run

    def _save(self, run: Any, file: Path, folder: str) -> None:
        """W&B links to a file below a folder: to a copy, as the run replaces its own."""
        copy = Path(run.dir) / folder / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
        run.save(copy, base_path=run.dir, policy="now", glob=False)
