"""Reports of the loop: to run.dir, the terminal and the trackers on the rank that reports, nowhere on the others.

with RunLog(config, layout, engine.is_reporter) as log: ...
"""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import torch

from data_pipeline.batch import Batch
from data_pipeline.errors import DataError
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.model_spec.generator import num_run_parameters
from pretrain.model_spec.parameters import num_idle_parameters
from pretrain.observe import ending
from pretrain.observe.idle_experts import IdleExperts, idle_sentence
from pretrain.observe.memory import Peak, size
from pretrain.observe.points import DataInput
from pretrain.observe.progress import Progress
from pretrain.observe.results import HeldOutLoss, Result, TaskResults, heldout_terms, means, means_of_sources
from pretrain.observe.run_dir_writer import RunDirWriter
from pretrain.observe.speed_notes import SpeedNotes
from pretrain.observe.track import Trackers, keep_report
from pretrain.observe.tracker import RunStatus
from pretrain.plan.hardware import peak_flops
from pretrain.plan.memory import largest_state
from pretrain.process.urgency import Urgency
from pretrain.run_dir.paths import RunDir
from pretrain.run_dir.records import StepMetrics, read_events
from pretrain.run_length.changes import change_record, describe_change
from pretrain.run_length.segments import run_length

Report = TypeVar("Report", bound=Callable[..., None])


def _on_reporter(method: Report) -> Report:
    """A method of RunLog that does nothing on ranks that do not report."""

    @wraps(method)
    def report(log: "RunLog", *args: Any, **kwargs: Any) -> None:
        if log._is_reporter:
            method(log, *args, **kwargs)

    return cast(Report, report)


class RunLog:
    """Reports of a run by the rank that `is_reporter`; other ranks write nothing. Leaving the `with` block by an
    exception marks the run as failed. `config` is resolved; `begin` gets the config with which the run resumes, changes
    included. `renew` takes run.dir again if it was deleted, and raises RunError if it belongs to another run by now
    (`checkpoint.lock.Claim`)."""

    def __init__(
        self, config: RunConfig, layout: Layout, is_reporter: bool, renew: Callable[[], None] = lambda: None
    ) -> None:
        self._config, self._is_reporter = config, is_reporter
        if not is_reporter:
            return
        self._directory = Path(config.run.dir)
        self._progress = Progress(config.track.every_steps)
        self._files = RunDirWriter(self._directory, renew, self.alarm)
        self._known_changes: set[tuple[str, int]] | None = None
        self._heldout: float | None = None
        self._peak: Peak | None = None
        self._ended: RunStatus = "failed"
        self._idle_experts = IdleExperts(config.health.idle_experts)
        self._layout, self._parameters = layout, num_run_parameters(config)
        self._active_parameters = self._parameters - num_idle_parameters(config.model)
        device_name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        self._peak_flops = peak_flops(device_name, config.precision)
        self._speed_notes = SpeedNotes(config, layout, device_name)
        self._trackers: Trackers | None = None

    @_on_reporter
    def begin(self, config: RunConfig, step: int, tokens: int) -> None:
        """The run starts or resumes after `step` steps; what was recorded beyond them is dropped."""
        total_steps, end_tokens = run_length(config)
        self._progress.expect(total_steps, end_tokens)
        state = largest_state(config, self._layout)
        self._config = config
        path = self._files.begin(config, step)
        # Not before: a mistake found on the way here must not reopen a run that has ended well.
        tags = {"layout": str(self._layout), "ranks": str(self._layout.world)}
        tags |= {"state_bytes": str(round(state.total))}
        counts, active = {"parameters": self._parameters}, ""
        if self._active_parameters < self._parameters:
            counts["active_parameters"] = self._active_parameters
            active = f" ({self._active_parameters:,} active)"
        tags |= {name: str(count) for name, count in counts.items()}
        self._trackers = Trackers(self._config, self.warn, tags)
        self._trackers.artifact(path)
        if step == 0:
            self.event("started", layout=str(self._layout), ranks=self._layout.world, **counts)
        self._progress.say(
            f"{self._config.run.name}: {self._parameters:,} parameters{active} on {self._layout}, "
            f"step {step:,} of {total_steps:,}, {tokens:,} of {end_tokens:,} tokens, in {self._directory}"
        )
        self._progress.say(
            f"memory: the fullest rank holds {size(state.total)} of weights ({size(state.weights)}), gradients "
            f"({size(state.gradients)}) and optimizer ({size(state.optimizer)}); activations, buffers and libraries "
            "come on top"
        )

    @_on_reporter
    def rolled_back(self, config: RunConfig, step: int) -> None:
        """The run rolls back to `step` steps and continues with `config`, which is on the disk when this returns; what
        was recorded beyond them is dropped."""
        self._config = config
        path = self._files.rolled_back(config, step)
        if self._trackers is not None:
            self._trackers.artifact(path)

    @_on_reporter
    def step(
        self, step: int, tokens: int, batch: Batch, result: Result, *, learning_rate: float, seconds: float,
        save_seconds: float, peak: Peak,
    ) -> None:  # fmt: skip
        """One optimizer step, which took `seconds` and brought the run to `tokens` tokens, after training had
        paused `save_seconds` for saving; until then the rank with most memory had held `peak`."""
        assert self._trackers is not None, "the run has begun"
        counted = len(batch.sample_ids) * batch.tokens.shape[1] if result.tokens is None else result.tokens
        mfu = None
        if self._peak_flops is not None and result.flops is not None:
            mfu = result.flops / seconds / (self._peak_flops * self._layout.world)
        metrics = StepMetrics(
            step=step,
            loss=result.loss_sum / result.token_count if result.token_count else math.nan,
            grad_norm=result.grad_norm,
            learning_rate=learning_rate,
            tokens=tokens,
            samples=batch.cursor.samples,
            data_hash=batch.data_hash,
            step_seconds=seconds,
            tokens_per_second=counted / seconds,
            mfu=mfu,
            save_seconds=save_seconds,
            loss_scale=result.loss_scale,
            device_peak_bytes=peak.device,
            host_peak_bytes=peak.host,
            terms=means(result.terms) | means_of_sources(result.by_source),
            figures=result.figures,
            tokens_per_expert=result.tokens_per_expert,
        )
        if metrics.host_peak_bytes is not None:
            self._peak = peak
        self._files.step(metrics)
        self._progress.step(metrics)
        self._trackers.step(metrics)
        for note in self._speed_notes.after(step, seconds, mfu):
            self.say(note)
            self.event("speed", step=step, text=note)
        if idle := self._idle_experts.newly(result.tokens_per_expert):
            experts = len(next(iter(result.tokens_per_expert.values())))
            self.warn(idle_sentence(step, idle, experts), "idle_experts", step=step, idle=idle)

    @_on_reporter
    def before_save(self) -> None:
        """Has the disk hold the steps and events so far: before a checkpoint that a run would resume from after a power
        failure. Raises RunError and OSError where run.dir is not this run's any more. For any thread."""
        self._files.before_save()

    @_on_reporter
    def check(self) -> None:
        """Raises RunError if another run writes to run.dir by now."""
        self._files.check()

    @_on_reporter
    def settle(self) -> None:
        """Waits until the files have everything so far, for a minute. Raises RunError if they have not."""
        self._files.settle()

    def urgency(self) -> Urgency:
        """Request of this rank to all ranks, as the run's files were deleted (requested once) or can't be written."""
        return self._files.urgency() if self._is_reporter else Urgency.NONE

    @_on_reporter
    def heldout(self, step: int, tokens: int, heldout: HeldOutLoss, sources: Sequence[str] = ()) -> None:
        """The held-out loss after `step` steps; of several `sources` also that of each, and its bits per byte."""
        assert self._trackers is not None, "the run has begun"
        terms = heldout_terms(heldout, sources)
        self.event(
            "heldout", step=step, tokens=tokens, loss=heldout.loss, predicted_tokens=heldout.token_count, **terms
        )
        self._heldout = heldout.loss
        self._progress.heldout(heldout.loss)
        for name, mean in {"loss": heldout.loss, **terms}.items():
            self._trackers.point(step, f"heldout_{name}", mean)

    @_on_reporter
    def tasks(self, step: int, tokens: int, results: TaskResults) -> None:
        """Records the scores of tasks after `step` steps."""
        assert self._trackers is not None, "the run has begun"
        self.event("tasks", step=step, tokens=tokens, results=results)
        scores = []
        for task, by_shots in results.items():
            for shots, result in by_shots.items():
                value = result[result["metric"]]
                if value is not None:
                    self._trackers.point(step, f"tasks/{task}/{shots}-shot/{result['metric']}", value)
                    scores.append(f"{task} ({shots} shots) {value:.4g}")
        self.say(f"step {step}: {', '.join(scores)}")

    @_on_reporter
    def figures(self, step: int, tokens: int, figures: Mapping[str, float | None]) -> None:
        """Records the figures of a fine-tuned model on the validation rows after `step` steps, which a run that is
        finished may get later than its end."""
        self.event("figures", step=step, tokens=tokens, figures=dict(figures))
        for name, value in figures.items():
            if value is not None and self._trackers is not None:
                self._trackers.point(step, f"validation_{name}", value)
        shown = (f"{name} {'undefined' if value is None else f'{value:.4f}'}" for name, value in figures.items())
        self.say(f"step {step}: {', '.join(shown)}")

    @_on_reporter
    def report(self, step: int, files: Sequence[Path], folder: str, scores: Mapping[str, float]) -> None:
        """Passes a report of the weights after `step` and its scores to the trackers, which a run that was finished
        before has not begun."""
        if self._trackers is None:
            keep_report(self._config, list(files), folder, scores, step=step, warn=self.warn)
            return
        for name, value in scores.items():
            self._trackers.point(step, name, value)
        for file in files:
            self._trackers.artifact(file, folder)

    @_on_reporter
    def best(self, step: int, figure: str, value: float, final: bool = False) -> None:
        """Records that the checkpoint after `step` steps is the best by the figure of `checkpoint.best`: so far, or of
        a run that has ended."""
        self.event("best", step=step, figure=figure, value=value)
        self.say(f"step {step:,}: the best {figure}{'' if final else ' so far'}, {value:.4f}")

    @_on_reporter
    def data(self, inputs: Sequence[DataInput]) -> None:
        """Passes the training data to the trackers; the run's files have it in the config."""
        assert self._trackers is not None, "the run has begun"
        self._trackers.data(inputs)

    @_on_reporter
    def event(self, name: str, **facts: Any) -> None:
        """Appends a line to events.jsonl."""
        self._files.event(name, **facts)

    @_on_reporter
    def changed(self, step: int) -> None:
        """Records the changes of settings up to `step` that are not in events.jsonl yet."""
        if self._known_changes is None:  # once: later the disk may be in trouble
            events = [event for event in read_events(self._directory) if event["event"] == "changed"]
            self._known_changes = {(event["why"], event["step"]) for event in events}
        for number, change in enumerate(self._config.run.changes):
            if change.step <= step:
                entry = change_record(self._config, number)
                if (change.why, change.step) not in self._known_changes:
                    self.event("changed", **entry)
                    self._known_changes.add((change.why, change.step))
                self.say(describe_change(entry))

    @_on_reporter
    def stopped(self, step: int, tokens: int) -> None:
        """The run was asked to stop, and has saved."""
        self._ended = "stopped"
        self.event("stopped", step=step, tokens=tokens)
        self._end(ending.stopped(self._config, step))

    @_on_reporter
    def finished(self, step: int, tokens: int) -> None:
        """The run is done, and has saved."""
        self._ended = "finished"
        self.event("finished", step=step, tokens=tokens)
        self._end(ending.finished(self._config, self._layout, step, tokens, heldout=self._heldout, peak=self._peak))

    @_on_reporter
    def finished_before(self, config: RunConfig, step: int, tokens: int) -> None:
        """There is nothing left to do. The event that says so is written if a crash came between it and the last
        checkpoint."""
        events = read_events(self._directory)
        if not any(event["event"] == "finished" for event in events):
            self.event("finished", step=step, tokens=tokens)
        scored = [event["loss"] for event in events if event["event"] == "heldout" and event["step"] == step]
        self.say(f"{self._directory} is finished")
        self._end(
            ending.finished(config, self._layout, step, tokens, heldout=scored[-1] if scored else None, peak=None)
        )

    @_on_reporter
    def warn(self, sentence: str, event: str = "warning", **facts: Any) -> None:
        """Something that the user should know, and that training survives. Recorded as `event`, with more facts."""
        self._progress.say(f"warning: {sentence}", "warning")
        self.event(event, text=sentence, **facts)

    @_on_reporter
    def alarm(self, sentence: str, event: str = "warning", **facts: Any) -> None:
        """Warns on stderr, where nobody should miss it. Recorded as `event` with its facts. For any thread."""
        self._progress.alarm(sentence)
        self.event(event, **(facts or {"text": sentence}))

    @_on_reporter
    def say(self, sentence: str) -> None:
        """Something for whoever watches, and for no file."""
        self._progress.say(sentence)

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_reporter:
            return
        self._progress.close()
        if error is not None and not self._refuses(error):
            trace_text = "".join(traceback.format_exception(error))
            self.event("failed", reason=f"{type(error).__name__}: {error}", traceback=trace_text)
        impatient = error is not None and not isinstance(error, Exception)  # a second Ctrl-C does not wait for MLflow
        if self._trackers is not None and not impatient:
            status: RunStatus = "failed" if error is not None else self._ended
            self._trackers.close(status)
            for link in self._trackers.links() if status != "failed" else ():
                self._progress.say(link)
        self._files.close()

    def _end(self, text: str) -> None:
        """The last words, below the last state."""
        self._progress.close()
        self._progress.say(text, "good")

    def _refuses(self, error: BaseException) -> bool:
        """Whether a command that would have resumed a run was refused: the status of the run is unchanged."""
        begun = self._trackers is not None or not RunDir(self._directory).config.exists()
        return isinstance(error, ConfigError | DataError) and not begun
