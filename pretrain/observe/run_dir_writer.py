"""Writer of the files of a run's log: config.yaml, metrics.jsonl and events.jsonl of run.dir. Deleted ones are made
again."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_pipeline.common.atomic import atomic_write
from pretrain.config.load import dump
from pretrain.config.run_config import RunConfig
from pretrain.data.inherited import inherited_files
from pretrain.errors import unwritable
from pretrain.process.urgency import Urgency
from pretrain.run_dir.json_lines import JsonLinesWriter
from pretrain.run_dir.paths import RunDir
from pretrain.run_dir.records import EventLog, MetricsLog, StepMetrics

_PATIENCE_S = 60.0  # with a disk, when the run is to end
_CLOSE_S = 5.0  # with one that is in trouble, when the run has ended by an error


class RunDirWriter:
    """Writes config, metrics and events into `directory`. `renew` claims it again if it was deleted; raises RunError
    if it belongs to another run by now; `alarm` gets sentences that nobody should miss. Both are called in any
    thread."""

    def __init__(self, directory: Path, renew: Callable[[], None], alarm: Callable[[str], None]) -> None:
        self.directory, self._renew, self._alarm = directory, renew, alarm
        self._regaining, self._vanished = threading.Lock(), False
        self._config: bytes | None = None
        self._inherited: dict[Path, bytes] = {}
        self._events = EventLog(directory, alarm, self._regain)
        self._metrics: MetricsLog | None = None

    def begin(self, config: RunConfig, step: int) -> Path:
        """The run starts or resumes after `step` steps. Returns its config's path. Raises RunError if the config, or
        the chat template beside it, can't be written."""
        self._inherited = inherited_files(config)
        self._write_config(config)
        self._metrics = MetricsLog(self.directory, step, self._alarm, self._regain)
        return RunDir(self.directory).config

    def rolled_back(self, config: RunConfig, step: int) -> Path:
        """The run rolls back to `step` steps and continues with `config`. Removes later lines of metrics.jsonl before
        the config is written: earlier lines are right with or without the samples that `config` skips. Returns the
        config's path. Raises RunError if it can't be written."""
        assert self._metrics is not None, "the run has begun"
        self._metrics.close()
        self._metrics = MetricsLog(self.directory, step, self._alarm, self._regain)
        self._write_config(config)
        return RunDir(self.directory).config

    def step(self, metrics: StepMetrics) -> None:
        """A line of metrics.jsonl."""
        assert self._metrics is not None, "the run has begun"
        self._metrics.step(metrics)

    def event(self, name: str, **facts: Any) -> None:
        """A line of events.jsonl."""
        self._events.event(name, **facts)

    def before_save(self) -> None:
        """See `RunLog`."""
        self._regain()
        for lines in self._all:
            lines.sync()

    def urgency(self) -> Urgency:
        """See `RunLog`."""
        if any(lines.overflows for lines in self._all):
            return Urgency.LAST_TRY
        vanished, self._vanished = self._vanished, False
        return Urgency.SAVE if vanished else Urgency.NONE

    def check(self) -> None:
        """See `RunLog`."""
        for lines in self._all:
            lines.check()

    def settle(self) -> None:
        """See `RunLog`."""
        for lines in self._all:
            lines.settle(_PATIENCE_S)

    def close(self) -> None:
        """Writes what is left, if the disk takes it."""
        for lines in self._all:
            if number := lines.close(_CLOSE_S):
                self._alarm(f"{number:,} lines of {lines.path} could not be written and are lost")

    @property
    def _all(self) -> list[JsonLinesWriter]:
        return [self._events] if self._metrics is None else [self._metrics, self._events]

    def _write_config(self, config: RunConfig) -> None:
        self._config = dump(config).encode()
        try:
            self._write_files(self._config)
        except OSError as error:
            raise unwritable(RunDir(self.directory).config, error) from None

    def _write_files(self, config: bytes) -> None:
        """The chat template and what else exports need of the weights' origin, then the config."""
        for path, content in self._inherited.items():
            atomic_write(path, content)
        atomic_write(RunDir(self.directory).config, config)

    def _regain(self) -> None:
        """Makes the directory again if it was deleted."""
        with self._regaining:
            self._renew()
            if self._config is None or RunDir(self.directory).config.exists():
                return
            self._write_files(self._config)
            self._vanished = True
        self._alarm(f"{self.directory} was deleted while the run writes to it: it is made again, and saved to at once")
