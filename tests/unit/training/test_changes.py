"""Settings that change partway through a run: which apply, from which step on, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pretrain.checkpoint.state import Record, check_same_run
from pretrain.config.change import Change
from pretrain.config.load import dump, validate
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.run_length.changes import change_record, config_after, describe_change
from pretrain.run_length.ramp import batch_sequences
from pretrain.run_length.schedule import learning_rate
from pretrain.run_length.segments import run_length, segment_after, segments
from pretrain.training.changes import ResolvedChanges, recorded_changes, resolve_changes
from tests.helpers.small_configs import config

BATCH = 240 * 32


def begun(**sections: Any) -> RunConfig:
    return config(schedule={"warmup_steps": 10}, **sections)


def wants(base: RunConfig, *overrides: str) -> RunConfig:
    """What a start of the run with `overrides` asks for."""
    return validate(RunConfig, base.model_dump(mode="json"), "config", list(overrides))


def record(run: RunConfig, step: int) -> Record:
    """The record of the run's checkpoint after `step` steps, trained with the run's changes."""
    parts, tokens = segments(run), 0
    for done in range(step):
        part = segment_after(parts, tokens)
        assert part.begin[0] <= done
        tokens += batch_sequences(part.config.batch, tokens) * 32
    return Record(
        step=step, updates=step, tokens=tokens, cursor={}, config=run.model_dump(mode="json"), layout="", versions={}
    )


def changed(base: RunConfig, step: int, request: str, found: tuple[Change, ...] = ()) -> RunConfig:
    return resolve_changes(wants(base, f"run.change={request}"), record(base, step), found).config


def test_both_ways_to_write_a_change_are_one() -> None:
    flat = wants(begun(), "run.change={why: a spike, optimizer.learning_rate: 0.5}")
    nested = wants(begun(), "run.change={why: a spike, optimizer: {learning_rate: 0.5}}")
    dotted = wants(begun(), "run.change.why=a spike", "run.change.optimizer.learning_rate=0.5")
    assert flat.run.change == nested.run.change == dotted.run.change
    assert flat.run.change is not None
    assert flat.run.change.settings == {"optimizer.learning_rate": 0.5}


def test_steps_before_a_change_keep_their_rate_and_those_after_it_have_the_new_one() -> None:
    base = begun()
    run = changed(base, 50, "{why: a spike, optimizer.learning_rate: 0.5}")
    assert run.optimizer.learning_rate == 1.0, "the record of how it began stays"
    assert run.run.changes == (Change(why="a spike", step=50, settings={"optimizer.learning_rate": 0.5}),)
    first, second = segments(run)
    end = run_length(base)
    assert run_length(run) == end == (100, 100 * BATCH)
    for step in (1, 50):
        part = segment_after([first, second], (step - 1) * BATCH)
        assert learning_rate(part.config, (step, 0), part.end) == learning_rate(base, (step, 0), end)
    part = segment_after([first, second], 50 * BATCH)
    assert learning_rate(part.config, (51, 0), part.end) == 0.5 * learning_rate(base, (51, 0), end)


def test_a_batch_grows_from_its_step_on_and_the_end_moves_with_it() -> None:
    run = changed(begun(), 40, "{why: more, batch.sequences: 480}")
    parts = segments(run)
    sizes = [batch_sequences(segment_after(parts, tokens).config.batch, tokens) for tokens in (0, 39 * BATCH)]
    assert sizes == [240, 240]
    assert batch_sequences(segment_after(parts, 40 * BATCH).config.batch, 40 * BATCH) == 480
    assert run_length(run) == (100, (40 + 2 * 60) * BATCH)
    in_tokens = changed(begun(train={"tokens": 100 * BATCH}), 40, "{why: more, batch.sequences: 480}")
    assert run_length(in_tokens) == (70, 100 * BATCH)


def test_a_longer_run_leaves_the_rates_of_the_steps_it_has_made() -> None:
    base = begun()
    run = changed(base, 50, "{why: more data, train.steps: 200}")
    parts = segments(run)
    assert run_length(run) == (200, 200 * BATCH)
    before, after = segment_after(parts, 49 * BATCH), segment_after(parts, 50 * BATCH)
    assert learning_rate(before.config, (50, 0), before.end) == learning_rate(base, (50, 0), (100, 0))
    longer = begun(train={"steps": 200})
    assert learning_rate(after.config, (51, 0), after.end) == learning_rate(longer, (51, 0), (200, 0))
    assert run_length(changed(base, 50, "{why: in tokens, train.tokens: 1000000}")) == (131, 131 * BATCH)


def test_a_finished_run_can_be_made_longer() -> None:
    assert run_length(changed(begun(), 100, "{why: more data, train.steps: 120}")) == (120, 120 * BATCH)


def test_a_schedule_is_another_one_or_the_same_with_other_settings() -> None:
    run = changed(begun(), 50, "{why: flat, schedule: constant}")
    assert config_after(run, run.run.changes).schedule.name == "constant"
    run = changed(begun(), 50, "{why: lower, schedule.final_fraction: 0}")
    now = config_after(run, run.run.changes).schedule
    assert now.model_dump() == {**begun().schedule.model_dump(), "final_fraction": 0.0}


def test_the_same_command_again_changes_nothing_more() -> None:
    """Killed right after the change: its checkpoint does not know of it, config.yaml does. Later both do."""
    base = begun()
    run = changed(base, 50, "{why: a spike, optimizer.learning_rate: 0.5}")
    again = wants(base, "run.change={why: a spike, optimizer.learning_rate: 0.5}")
    assert resolve_changes(again, record(base, 50), run.run.changes) == ResolvedChanges(run)
    assert resolve_changes(again, record(run, 60), run.run.changes) == ResolvedChanges(run)
    assert resolve_changes(again, record(run, 60), ()) == ResolvedChanges(run), "config.yaml is lost"
    assert resolve_changes(again, record(base, 50), ()) == ResolvedChanges(run), "killed before it was recorded"
    assert resolve_changes(again, record(base, 30), run.run.changes) == ResolvedChanges(run), (
        "back at an older checkpoint"
    )


@pytest.mark.parametrize("said", [[], ["optimizer.learning_rate=0.5"]])
def test_a_plain_start_goes_on_with_what_was_changed(said: list[str]) -> None:
    base = begun()
    run = changed(base, 50, "{why: a spike, optimizer.learning_rate: 0.5}")
    settled = resolve_changes(wants(base, *said), record(run, 60), run.run.changes)
    assert settled == ResolvedChanges(run)
    check_same_run(record(run, 60), settled.config)
    from_config_yaml = resolve_changes(
        validate(RunConfig, run.model_dump(mode="json"), ""), record(run, 60), run.run.changes
    )
    assert from_config_yaml == ResolvedChanges(run)


def test_a_second_change_follows_the_first() -> None:
    base = begun()
    run = changed(base, 50, "{why: a spike, optimizer.learning_rate: 0.5}")
    run = changed(run, 60, "{why: again, optimizer.learning_rate: 0.25}", run.run.changes)
    assert [change.step for change in run.run.changes] == [50, 60]
    second = change_record(run, 1)
    assert second["settings"] == {"optimizer.learning_rate": {"from": 0.5, "to": 0.25}}
    assert describe_change(second) == "changed at step 60, again: optimizer.learning_rate from 0.5 to 0.25"
    assert [part.config.optimizer.learning_rate for part in segments(run)] == [1.0, 0.5, 0.25]
    first_again = wants(base, "run.change={why: a spike, optimizer.learning_rate: 0.5}")
    assert resolve_changes(first_again, record(run, 70), run.run.changes) == ResolvedChanges(run)
    back = changed(run, 80, "{why: back, optimizer.learning_rate: 1.0}", run.run.changes)
    assert segments(back)[-1].config.optimizer.learning_rate == 1.0, "as it began, though the file says so too"


def test_a_change_made_before_one_to_come_takes_its_place() -> None:
    base = begun()
    run = changed(base, 50, "{why: a spike, optimizer.learning_rate: 0.5}")
    earlier = wants(base, "run.change={why: earlier, optimizer.learning_rate: 0.7}")
    settled = resolve_changes(earlier, record(base, 30), run.run.changes)
    assert settled.replaced == run.run.changes
    assert [change.why for change in settled.config.run.changes] == ["earlier"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            "{why: x, model.layers: 4}",
            "run.change cannot change model.layers: a run can change",
        ),
        ("{why: x, run.seed: 4}", "run.change cannot change run.seed"),
        ("{why: x, optimizer.beta1: 0.5}", "run.change cannot change optimizer.beta1"),
        ("{why: x, objective: masked}", "run.change cannot change objective"),
        ("{why: x, data.path: other}", "run.change cannot change data.path"),
        ("{why: x}", "run.change names no setting: add one of optimizer.learning_rate"),
        ("{optimizer.learning_rate: 3e-4}", "'run.change.why' is required"),
        ("{why: x, optimizer.learning_rate: -1}", "'optimizer.learning_rate' = -1"),
        ("{why: x, optimizer.learning_rate: 1}", "run.change 'x' changes nothing: the run has"),
        ("{why: x, train.steps: 50}", "ends the run at step 50 and 384,000 tokens, and it is at step 50"),
        ("{why: x, batch.ramp: {start_sequences: 7, increment_sequences: 7, tokens: 9}}", "batch.ramp cannot reach"),
    ],
)
def test_what_cannot_be_changed_is_refused_in_a_sentence(request_: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        changed(begun(), 50, request_)
    assert words in str(error.value)


LLAMA = {"family": "llama", "norm_type": "rms", "bias": False, "activation": "gated_silu", "positions": "rotary"}
MIXED = {
    **LLAMA,
    "mtp": {"num_layers": 1, "loss_scaling_factor": 0.3},
    "experts": {"count": 4, "top_k": 2, "scores": "sigmoid", "selection_bias": True, "bias_rate": 0.001},
}


def test_weights_of_further_tokens_and_rates_of_biases_change_as_learning_rates_do() -> None:
    base = begun(model=MIXED)
    run = changed(base, 50, "{why: DeepSeek-V3, model.mtp: {loss_scaling_factor: 0.1}, model.experts.bias_rate: 0}")
    found = [(p.config.model.mtp, p.config.model.experts) for p in segments(run)]
    assert [mtp and mtp.loss_scaling_factor for mtp, _ in found] == [0.3, 0.1]
    assert [experts and experts.bias_rate for _, experts in found] == [0.001, 0]
    assert describe_change(change_record(run, 0)).endswith(
        "model.mtp.loss_scaling_factor from 0.3 to 0.1; model.experts.bias_rate from 0.001 to 0.0"
    )
    check_same_run(record(run, 60), resolve_changes(wants(base), record(run, 60), run.run.changes).config)
    other = resolve_changes(wants(base, "model.mtp.loss_scaling_factor=0.2"), record(run, 60), run.run.changes)
    with pytest.raises(ConfigError, match=r"model\.mtp\.loss_scaling_factor=0\.3.*run\.change"):
        check_same_run(record(run, 60), other.config)


@pytest.mark.parametrize(
    ("model", "setting", "words"),
    [
        ({}, "model.mtp.loss_scaling_factor: 0.1", "and the run has no model.mtp: leave the setting out"),
        ({}, "model.experts.bias_rate: 0.1", "and the run has no model.experts: leave the setting out"),
        (
            {**LLAMA, "experts": {"count": 4, "top_k": 2}},
            "model.experts.bias_rate: 0.1",
            "moves a bias that the model has not",
        ),
    ],
)
def test_what_the_model_has_not_cannot_be_changed(model: dict[str, Any], setting: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        changed(begun(model=model), 50, f"{{why: x, {setting}}}")
    assert words in str(error.value)


def test_a_name_stands_for_one_change() -> None:
    run = changed(begun(), 50, "{why: a spike, optimizer.learning_rate: 0.5}")
    with pytest.raises(ConfigError, match="'a spike' is the name of a change made at step 50"):
        changed(run, 60, "{why: a spike, optimizer.learning_rate: 0.1}", run.run.changes)


def test_there_has_to_be_a_run_to_change() -> None:
    with pytest.raises(ConfigError, match="for a run that has begun, and unused has no checkpoint: omit it"):
        resolve_changes(wants(begun(), "run.change={why: x, train.steps: 200}"), None, ())


def test_another_value_without_a_change_is_refused_and_the_change_is_named() -> None:
    run = changed(begun(), 50, "{why: a spike, optimizer.learning_rate: 0.5}")
    for override in ("optimizer.learning_rate=0.7", "batch.sequences=480", "train.steps=200", "schedule=constant"):
        settled = resolve_changes(wants(begun(), override), record(run, 60), run.run.changes)
        with pytest.raises(ConfigError, match=r"run\.change"):
            check_same_run(record(run, 60), settled.config)


def test_changes_are_the_run_s_to_write() -> None:
    made_up = "run.changes=[{why: x, step: 5, settings: {optimizer.learning_rate: 0.1}}]"
    with pytest.raises(ConfigError, match=r"run\.changes is recorded by unused itself: omit it"):
        resolve_changes(wants(begun(), made_up), record(begun(), 50), ())


def test_config_yaml_keeps_changes(tmp_path: Path) -> None:
    assert recorded_changes(tmp_path) == ()
    run = changed(begun(), 50, "{why: a spike, schedule: {name: wsd, decay_steps: 20}}")
    (tmp_path / "config.yaml").write_text(dump(run))
    assert recorded_changes(tmp_path) == run.run.changes
    (tmp_path / "config.yaml").write_text("run: {changes: [{why: x}]}")
    with pytest.raises(ConfigError, match=r"run\.changes cannot be read \(0\.step: field required\): restore it"):
        recorded_changes(tmp_path)


def test_a_batch_of_two_lengths_stays() -> None:
    run = begun(batch={"sequences": 240, "short": {"sequence_length": 16, "steps": 20}})
    with pytest.raises(ConfigError, match=r"the batch of a run with batch\.short"):
        resolve_changes(
            wants(run, "run.change={why: x, batch.sequences: 480}"),
            replace(record(begun(), 50), config=run.model_dump(mode="json")),
            (),
        )
