"""`health.spike`: a batch of noise in the middle of a run is found, and under `act` the run ends as if it had never
been in the data: to the bit, on one rank and several, and wherever it is killed meanwhile."""

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from data_pipeline.batch import Batch
from pretrain.engine.base import StepResult
from pretrain.run_dir.records import read_events, read_metrics
from tests.helpers import command
from tests.helpers.breadth import slow

BAD, STEPS, ROWS = 17, 22, 16
TOKENS = ROWS * 32
ACT = "health.spike={name: act, window: 8}"
CONFIG = """
run: {name: bad, dir: RUN, seed: 3}
train: {steps: 22}
batch: {sequences: 16, micro_sequences: 4}
model: {layers: 2, hidden: 32, heads: 2, sequence_length: 32, attention: {pattern: [dense, banded], window: 8}}
optimizer: {learning_rate: 4e-3}
schedule: constant
data: DATA
evaluate: {sequences: 8}
checkpoint: {every_steps: 5}
track: {mlflow: false}
"""
CLEAN = "{sources: [{path: TEXT, name: text}]}"
NOISY = """
  sources: [{path: TEXT, name: text}, {path: NOISE, name: noise, weight: 0}]
  phases: [{tokens: BEGIN, weights: {text: 0, noise: 1}}, {tokens: END, weights: {text: 1, noise: 0}}]
"""


@pytest.fixture(scope="module")
def noise(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of characters that hardly occur in the text, by the text's tokenizer."""
    folder = tmp_path_factory.mktemp("noise")
    draw = np.random.default_rng(0)
    characters = ["".join(map(chr, draw.integers(0x4E00, 0x9FFF, 60))) for _ in range(60)]
    (folder / "noise.txt").write_text("\n\n".join(characters), encoding="utf-8")
    settings = [
        f"input={folder / 'noise.txt'}",
        f"output={folder / 'noise'}",
        f"tokenizer.path={dataset}/tokenizer.model",
        "txt_documents=paragraph",
    ]
    done = command.run("data", "build", "configs/data/text.yaml", *settings)
    assert done.returncode == 0, done.stderr
    return folder / "noise"


@pytest.fixture
def write(dataset: Path, noise: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a config of a run in `tmp_path / name` that meets `batches` batches of noise from step BAD on."""

    def config(name: str, batches: int = 1) -> Path:
        data = NOISY if batches else CLEAN
        text = CONFIG.replace("DATA", data).replace("RUN", str(tmp_path / name)).replace("TEXT", str(dataset))
        text = text.replace("BEGIN", str((BAD - 1) * TOKENS)).replace("END", str((BAD - 1 + batches) * TOKENS))
        path = tmp_path / f"{name}.yaml"
        path.write_text(text.replace("NOISE", str(noise)))
        return path

    return config


@pytest.fixture(scope="module")
def clean(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """The steps of a run on a layout that never had any noise in its data."""
    known: dict[tuple[str, ...], list[dict[str, Any]]] = {}

    def steps(*layout: str) -> list[dict[str, Any]]:
        if layout not in known:
            folder = tmp_path_factory.mktemp("clean")
            text = CONFIG.replace("DATA", CLEAN).replace("RUN", str(folder / "run")).replace("TEXT", str(dataset))
            (folder / "config.yaml").write_text(text)
            train(folder / "config.yaml", *layout, "health.spike=off")
            known[layout] = read_metrics(folder / "run")
        return known[layout]

    return steps


def train(*arguments: object, status: int = 0, first: Callable[[], object] | None = None) -> str:
    done = command.Command("train", *arguments, first=first)
    assert done.wait(300) == status, done.printed
    return done.printed


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for key in ("step", "data_hash", "tokens", "samples", "learning_rate", "loss", "grad_norm"):
        assert [line[key] for line in found] == [line[key] for line in expected], key


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run) if event["event"] == kind]


LAYOUTS = {
    "one rank": (),
    "pipeline 2": ("parallel.pipeline=2", "--nproc", "2"),
    "tensor 2 x pipeline 2": ("parallel.tensor=2", "parallel.pipeline=2", "--nproc", "4"),
    "data 2, stage 3": ("parallel.zero=3", "parallel.zero_engine=deepspeed", "--nproc", "2"),
}
SLOW = ("one rank", "tensor 2 x pipeline 2", "data 2, stage 3")


@pytest.mark.parametrize(
    "layout",
    [pytest.param(LAYOUTS[name], marks=[pytest.mark.slow] if name in SLOW else [], id=name) for name in LAYOUTS],
)
def test_act_ends_as_the_run_that_never_had_the_noise(
    layout: tuple[str, ...], write: Callable[..., Path], clean: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    said = train(write("run"), *layout, ACT)
    run = tmp_path / "run"
    assert f"warning: step {BAD}: the loss is " in said
    assert_same(read_metrics(run), clean(*layout))
    (spike,) = events(run, "spike")
    assert (spike["step"], spike["sample"], spike["samples"]) == (BAD, ROWS * (BAD - 1), ROWS)
    assert spike["value"] > spike["limit"] > spike["median"]
    assert {one["source"] for one in spike["documents"]} == {"noise"}
    assert {one["file"] for one in spike["documents"]} == {"noise.txt"}
    (back,) = events(run, "went_back")
    assert (back["step"], back["to_step"], back["why"]) == (BAD, 15, spike["why"])


def test_without_a_checkpoint_it_begins_again(
    write: Callable[..., Path], clean: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    train(write("run"), ACT, "checkpoint.every_steps=0")
    assert_same(read_metrics(tmp_path / "run"), clean())
    assert [back["to_step"] for back in events(tmp_path / "run", "went_back")] == [0]


def test_a_run_told_from_the_start_is_the_same_run_and_the_ledger_shows_what_was_left_out(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    train(write("run"), ACT)
    run, told = tmp_path / "run", tmp_path / "told"
    (spike,) = events(run, "spike")
    skip = [{key: spike[key] for key in ("step", "sample", "samples", "why")}]
    assert YAML(typ="safe").load(run / "config.yaml")["run"]["skipped"] == skip
    train(run / "config.yaml", "health.spike=off", f"run.dir={told}")
    assert_same(read_metrics(told), read_metrics(run))
    assert "the same run" in (said := command.run("compare", run, told).stdout).splitlines(), said
    for directory in (run, told):
        ledger = json.loads(command.run("data", "ledger", directory, "--json").stdout)
        assert [(skip["step"], skip["tokens"]) for skip in ledger["skipped"]] == [(BAD, {"noise": TOKENS})]
        assert [entry["tokens"] for entry in ledger["realised"]] == [STEPS * TOKENS, 0]
        assert ledger["realised"] == ledger["planned"]
    assert f"left out at step {BAD}, the loss is" in command.run("data", "ledger", run).stdout
    traced = command.run("data", "trace", run, "--step", BAD).stdout
    assert "noise" not in traced
    assert "text" in traced


def test_warn_and_off_change_nothing(write: Callable[..., Path], tmp_path: Path) -> None:
    said = train(write("warned"), "health.spike={name: warn, window: 8}")
    assert f"warning: step {BAD}: the loss is " in said
    train(write("off"), "health.spike=off")
    assert_same(read_metrics(tmp_path / "warned"), read_metrics(tmp_path / "off"))
    assert [spike["step"] for spike in events(tmp_path / "warned", "spike")] == [BAD]
    assert events(tmp_path / "off", "spike") == []
    assert len(read_metrics(tmp_path / "off")) == STEPS


@pytest.mark.slow
def test_a_stop_before_the_noise_does_not_blind_the_run(
    write: Callable[..., Path], clean: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    """The steps that the next is judged by are those before the stop."""
    config = write("run")
    train(config, ACT, f"train.steps={BAD - 1}")
    train(config, ACT, "parallel.tensor=2", "--nproc", "2")
    assert [spike["step"] for spike in events(tmp_path / "run", "spike")] == [BAD]
    found, expected = read_metrics(tmp_path / "run"), clean()
    assert [line["data_hash"] for line in found] == [line["data_hash"] for line in expected]
    np.testing.assert_allclose([line["loss"] for line in found], [line["loss"] for line in expected], atol=1e-5)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(moment: str) -> None:
    """Has the rank that reports be killed at a moment between finding the noise and having passed it."""
    from pretrain.observe import run_files
    from pretrain.observe.run_files import RunFiles
    from pretrain.training import resume

    event, write, cut, load = RunFiles.event, RunFiles._write_config, run_files.MetricsLog, resume.store.load
    began = []

    def dying_event(self: Any, name: str, **facts: Any) -> None:
        event(self, name, **facts)
        if (moment, name) in (("the spike is told", "spike"), ("the return is told", "went_back")):
            assert self._events.flush(60)
            _die()

    def dying_write(self: Any, config: Any) -> None:
        began.append(1)
        if len(began) > 1 and moment == "metrics are cut":
            _die()
        write(self, config)
        if len(began) > 1 and moment == "the skip is on disk":
            _die()

    def dying_cut(*arguments: Any) -> Any:
        if arguments[1] == BAD - 1 and moment == "nothing is written":
            _die()
        return cut(*arguments)

    def dying_load(*arguments: Any) -> Any:
        loaded = load(*arguments)
        if moment == "weights are loaded":
            _die()
        return loaded

    RunFiles.event = dying_event  # type: ignore[method-assign]
    RunFiles._write_config = dying_write  # type: ignore[method-assign]
    run_files.MetricsLog = dying_cut  # type: ignore[misc, assignment]
    resume.store.load = dying_load  # type: ignore[assignment]


MOMENTS = (
    "the spike is told", "nothing is written", "metrics are cut", "the skip is on disk", "weights are loaded",
    "the return is told",
)  # fmt: skip


@pytest.mark.parametrize("moments", [MOMENTS[1:4:2], slow((MOMENTS,))], ids=["two moments", "every moment"])
def test_killed_while_going_back_it_is_the_same_run(
    moments: tuple[str, ...],
    write: Callable[..., Path],
    clean: Callable[..., list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    """One after the other: each start finds what the one before it left."""
    config, layout = write("run"), ("--nproc", "2")
    for moment in moments:
        said = train(config, *layout, ACT, status=1, first=partial(_die_at, moment))
        assert "was ended by SIGKILL" in said, moment
        assert not events(tmp_path / "run", "finished")
    train(config, *layout, ACT)
    assert_same(read_metrics(tmp_path / "run"), clean(*layout))
    for kind in ("spike", "went_back"):
        assert [event["step"] for event in events(tmp_path / "run", kind)] == [BAD], kind


def test_two_bad_batches_in_a_row_are_both_left_out(
    write: Callable[..., Path], clean: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    train(write("run", batches=2), ACT)
    run = tmp_path / "run"
    assert_same(read_metrics(run), clean())
    for kind in ("spike", "went_back"):
        found = events(run, kind)
        assert [(one["step"], one["sample"]) for one in found] == [(BAD, ROWS * (BAD - 1))] * 2, kind
    documents = [{one["index"] for one in spike["documents"]} for spike in events(run, "spike")]
    assert documents[0] != documents[1]
    left_out = json.loads(command.run("data", "ledger", run, "--json").stdout)["skipped"]
    assert [skip["tokens"] for skip in left_out] == [{"noise": TOKENS}] * 2


def test_more_than_the_run_may_leave_out_end_it_with_their_documents(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    said = train(write("run", batches=2), "health.spike={name: act, window: 8, max_rollbacks: 1}", status=1)
    assert f"pretrain: step {BAD}: the loss is " in said
    assert f"and the run has rolled back from steps {BAD} already (health.spike.max_rollbacks=1)" in said
    assert "look at the step's documents (noise: noise.txt:" in said
    assert [spike["step"] for spike in events(tmp_path / "run", "spike")] == [BAD, BAD]
    assert len(events(tmp_path / "run", "went_back")) == 1
    (failed,) = events(tmp_path / "run", "failed")
    assert f"step {BAD}" in failed["reason"]


def _spoil(what: str) -> None:
    """Steps on noise have a loss that is not a number, leave a moment that is infinite, or meet a signal to stop."""
    from pretrain.engine.megatron.engine import MegatronEngine

    step_of = MegatronEngine.train_step

    def spoilt(self: MegatronEngine, batch: Batch, learning_rate: float, step: int) -> StepResult:
        noise = bool((batch.sample_ids[:, 0] == 1).any())
        if noise and what == "loss":
            batch.loss_mask[0, 0] = np.nan
        if noise and what == "stop":
            os.kill(os.getpid(), signal.SIGTERM)
        result = step_of(self, batch, learning_rate, step)
        if noise and what == "moment":
            moments = [part for name, part in self.state().items() if name.startswith("exp_avg_sq/")]
            moments[-1].pieces[0].value.fill_(np.inf)
        return result

    MegatronEngine.train_step = spoilt  # type: ignore[method-assign]


@pytest.mark.slow
def test_asked_to_stop_at_the_noise_it_goes_back_first_and_saves(
    write: Callable[..., Path], clean: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    train(write("run"), ACT, status=75, first=partial(_spoil, "stop"))
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == list(range(1, 17)), "15, and one more"
    assert (tmp_path / "run" / "checkpoints" / "step-00000016").is_dir()
    train(write("run"), ACT)
    assert_same(read_metrics(tmp_path / "run"), clean())


WARN = "health.spike=warn"
FEW = "health.spike=act"
"""whose window is never full here: what is not finite needs none"""


def test_a_loss_that_is_not_a_number_ends_the_run_or_is_gone_back_from(
    write: Callable[..., Path], clean: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    said = train(write("ends"), WARN, status=1, first=partial(_spoil, "loss"))
    assert f"pretrain: step {BAD}: the loss or gradient is not finite" in said
    train(write("acts"), FEW, first=partial(_spoil, "loss"))
    assert_same(read_metrics(tmp_path / "acts"), clean())
    for name in ("ends", "acts"):
        (spike,) = events(tmp_path / name, "spike")
        assert spike["why"] == "the loss is nan"
        assert {one["source"] for one in spike["documents"]} == {"noise"}


def test_a_moment_that_is_infinite_is_not_saved(
    write: Callable[..., Path], clean: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    every = f"checkpoint.every_steps={BAD}"
    said = train(write("ends"), WARN, every, status=1, first=partial(_spoil, "moment"))
    assert f"pretrain: step {BAD}: exp_avg_sq/" in said
    assert "is not finite after the update, so it is not saved" in said
    assert not (tmp_path / "ends" / "checkpoints").exists()
    train(write("acts"), FEW, every, first=partial(_spoil, "moment"))
    assert_same(read_metrics(tmp_path / "acts"), clean())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("precision=fp16", "loss_scale.initial=4294967296"), "every step was skipped"),
        (("precision=fp16", "loss_scale={initial: 6e-8, minimum: 6e-8}"), "every gradient was zero"),
    ],
)
def test_a_run_that_has_trained_nothing_fails_and_saves_nothing(
    settings: tuple[str, ...], words: str, write: Callable[..., Path], tmp_path: Path
) -> None:
    done = command.run("train", write("idle"), "train.steps=2", "health.spike=off", *settings)
    assert done.returncode == 1, done.stdout
    assert "the run ends without having trained anything" in done.stderr
    assert words in done.stderr
    assert not list((tmp_path / "idle" / "checkpoints").glob("step-*"))
    assert events(tmp_path / "idle", "failed")
    assert not events(tmp_path / "idle", "finished")
