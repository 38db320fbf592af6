"""One run inside MLflow. Imports mlflow, which takes seconds: only `mlflow_tracker.py` imports this file,
in the thread of `track.py`.

Every method may block and may raise anything.
"""

import json
import logging
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from data_pipeline.common.atomic import atomic_write
from pretrain.config.run_config import RunConfig
from pretrain.observe.mlflow_names import MlflowNames
from pretrain.observe.points import DataInput, File, Point
from pretrain.observe.sqlite_uri import sqlite_path, sqlite_uri
from pretrain.observe.system_info import system_info
from pretrain.observe.tracker import RefusedError, send_allowed
from pretrain.run_dir.paths import RunDir

_METRICS_PER_BATCH, _PER_BATCH, _PARAMETER_LENGTH, _DIGEST_LENGTH = 1000, 100, 6000, 36  # MLflow's own limits
_KIND, _TRAINING = "mlflow.experimentKind", "custom_model_development"
"""a tag of an experiment, without which MLflow's pages open on traces of agents instead of on the list of runs"""

for _chatty in ("mlflow", "alembic", "urllib3"):  # failures reach the user as one sentence
    logging.getLogger(_chatty).setLevel(logging.CRITICAL)


class MlflowWriter:
    """A run that MLflow has. What MLflow refuses for good is left out, and said once."""

    def __init__(self, client: MlflowClient, run_id: str, warn: Callable[[str], None]) -> None:
        self._client, self._id, self._warn = client, run_id, warn
        self._name = MlflowNames(warn)
        self._has_refused = False

    def log_metrics(self, points: Sequence[Point]) -> None:
        """Logs at most 1000 numbers, or none. Raises RefusedError if MLflow refuses one of them for good."""
        with self._refusals():
            self._client.log_batch(self._id, [Metric(self._name(p.name), p.value, p.time_ms, p.step) for p in points])

    def log_report(self, scores: Sequence[Point], files: Sequence[Path], folder: str) -> None:
        """Logs scores, and keeps files in a folder."""
        for start in range(0, len(scores), _METRICS_PER_BATCH):
            send_allowed(
                self.log_metrics,
                scores[start : start + _METRICS_PER_BATCH],
                lambda point, error: self._leave_out(point.name, error),
            )
        for file in files:
            self._client.log_artifact(self._id, str(file), folder)

    def _log_facts(self, facts: Sequence[Param | RunTag]) -> None:
        """Logs parameters and tags, of which none can be logged twice with another value."""

        def send(some: Sequence[Param | RunTag]) -> None:
            parameters = [fact for fact in some if isinstance(fact, Param)]
            tags = [fact for fact in some if isinstance(fact, RunTag)]
            with self._refusals():
                self._client.log_batch(self._id, params=parameters, tags=tags)

        for start in range(0, len(facts), _PER_BATCH):
            send_allowed(send, facts[start : start + _PER_BATCH], lambda fact, error: self._leave_out(fact.key, error))

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Raises RefusedError for an error that MLflow would answer with again. A run that was deleted can be restored,
        so it refuses nothing for good."""
        try:
            yield
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE" or self._is_deleted(self._client.get_run(self._id)):
                raise
            raise RefusedError(str(error)) from error

    @staticmethod
    def _is_deleted(run: Run) -> bool:
        return bool(run.info.lifecycle_stage == "deleted")

    def _leave_out(self, name: str, error: RefusedError) -> None:
        if not self._has_refused:
            self._has_refused = True
            self._warn(f"MLflow does not take {name[:80]} ({str(error).splitlines()[0][:200]})")


class MlflowRun(MlflowWriter):
    """Opens the run that the file `tracker_run_id` of the run names, or a new one, and describes it."""

    def __init__(
        self, config: RunConfig, uri: str, run_dir: Path, tags: Mapping[str, str], warn: Callable[[str], None]
    ) -> None:
        database = sqlite_path(uri)
        if database is not None:
            _create(database)
        super().__init__(open_client(uri), "", warn)
        id_file = RunDir(run_dir).tracker_run_id("mlflow")
        self._experiment_id = ""
        recorded = self._continue(id_file)
        if recorded is None:
            # Without a place of its own, a local database would keep files under the working directory.
            artifacts = (database.parent.resolve() / "mlflow-artifacts").as_uri() if database else None
            self._experiment_id = self._experiment(config.track.experiment, artifacts)
            self._id = self._client.create_run(self._experiment_id, run_name=config.run.name).info.run_id
            atomic_write(id_file, self._id.encode())
        self._describe(config, tags, recorded or {})

    @property
    def page(self) -> str:
        """The run's page, below the address of MLflow's pages."""
        return f"#/experiments/{self._experiment_id}/runs/{self._id}"

    def log_artifact(self, file: File) -> None:
        self._client.log_artifact(self._id, str(file.path), file.folder or None)

    def log_dataset(self, data: DataInput) -> None:
        """Records a dataset. MLflow limits the length of its digest; its profile has the full fingerprint."""
        profile = json.dumps({**data.profile, "fingerprint": data.fingerprint})
        source = json.dumps({"uri": data.address})
        dataset = Dataset(data.name, data.fingerprint[:_DIGEST_LENGTH], "pretrain", source, profile=profile)
        tags = [InputTag("mlflow.data.context", "training")]
        self._client.log_inputs(self._id, datasets=[DatasetInput(dataset, tags)])

    def finish(self, status: str) -> None:
        self._client.set_terminated(self._id, status)

    def _continue(self, id_file: Path) -> dict[str, str] | None:
        """Takes up the run that `id_file` names and returns its parameters; None if MLflow has no such run."""
        self._id = id_file.read_text().strip() if id_file.exists() else ""
        if not self._id:
            return None
        try:
            run = self._client.get_run(self._id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        if self._is_deleted(run):
            return None
        self._client.update_run(self._id, status="RUNNING")
        self._experiment_id = run.info.experiment_id
        return dict(run.data.params)

    def _experiment(self, name: str, artifacts: str | None) -> str:
        """Id of an experiment, which is created if it does not exist, with its files at `artifacts` (None: the server's
        default)."""
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name, artifacts, {_KIND: _TRAINING}))
            except MlflowException:  # another run was faster
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        if _KIND not in experiment.tags:
            self._client.set_experiment_tag(experiment.experiment_id, _KIND, _TRAINING)
        return str(experiment.experiment_id)

    def _describe(self, config: RunConfig, tags: Mapping[str, str], recorded: dict[str, str]) -> None:
        """Records the config as parameters. Those never change in MLflow: what a resumed run changes becomes a tag."""
        known = flatten(config.model_dump(mode="json", exclude={"track": {"uri"}}))  # which may hold a password
        parameters = {self._name(key): value for key, value in known.items()}
        changed = {f"resumed.{key}": value for key, value in parameters.items() if recorded.get(key, value) != value}
        new = [Param(key, value) for key, value in parameters.items() if key not in recorded]
        facts = [RunTag(self._name(key), value) for key, value in {**system_info(), **tags, **changed}.items()]
        self._log_facts([*new, *facts])


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings -> dotted keys with text values (JSON for what is not text), cut to MLflow's length."""
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            flat[f"{prefix}{key}"] = text[:_PARAMETER_LENGTH]
    return flat


def open_client(uri: str) -> MlflowClient:
    """A client of MLflow, which makes the parent of a database by its address as it is written, codes and all: that
    folder goes again."""
    written = Path(uri.removeprefix("sqlite:///")).parent
    strays = [folder for folder in (written, *written.parents) if not folder.exists()] if sqlite_path(uri) else []
    client = MlflowClient(tracking_uri=uri)
    for folder in strays:
        with suppress(OSError):  # somebody has put something into it
            folder.rmdir()
    return client


def _create(database: Path) -> None:
    """Makes the database if there is none. It appears whole: MLflow refuses one whose making was interrupted. Raises
    sqlite3.Error if one cannot be opened: MLflow would try again for minutes before it says so."""
    database.parent.mkdir(parents=True, exist_ok=True)
    if not database.exists():
        with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=database.parent) as directory:
            unfinished = Path(directory) / database.name
            open_client(sqlite_uri(unfinished))
            if not database.exists():  # another run may have been faster
                unfinished.rename(database)
    connection = sqlite3.connect(database)
    try:
        connection.execute("PRAGMA schema_version")
    finally:
        connection.close()
