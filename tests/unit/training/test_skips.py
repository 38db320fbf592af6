"""Samples that a run leaves out: which skips it goes on with, from where, and when it goes back no more."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.checkpoint.state import Record, check_same_run
from pretrain.config.health import SpikesAct
from pretrain.config.load import dump
from pretrain.config.run_config import RunConfig
from pretrain.config.skip import Skip
from pretrain.errors import ConfigError
from pretrain.run_length.ramp import tokens_of
from pretrain.training.skips import add_skip, recorded_config, resolve_skips, why_not_again, with_skips
from tests.helpers.small_configs import config

ROWS = 240


def skip(step: int, rows: int = ROWS) -> Skip:
    return Skip(step=step, sample=(step - 1) * ROWS, samples=rows, why=f"bad at {step}")


def record(run: RunConfig, step: int) -> Record:
    cursor = {"samples": step * ROWS, "fingerprint": "f"}
    return Record(
        step=step,
        updates=step,
        tokens=tokens_of(run, step * ROWS),
        cursor=cursor,
        config=run.model_dump(mode="json"),
        layout="",
        versions={},
    )


def settled(wanted: RunConfig, saved: Record | None, found: RunConfig | None) -> tuple[tuple[Skip, ...], list[str]]:
    warnings: list[str] = []
    tree: dict[str, Any] = found.model_dump(mode="json") if found is not None else {}
    return resolve_skips(wanted, saved, tree, warnings.append).run.skipped, warnings


def test_a_run_goes_on_with_what_its_config_records_from_a_checkpoint_before_it_or_after() -> None:
    base = config()
    one, two = with_skips(base, (skip(8),)), with_skips(base, (skip(8), skip(15)))
    for step, saved in ((5, base), (7, base), (7, one), (12, one), (14, one), (14, two), (20, two)):
        assert settled(base, record(saved, step), two) == ((skip(8), skip(15)), [])


def test_a_checkpoint_that_knows_better_than_a_config_is_believed() -> None:
    base = config()
    two = with_skips(base, (skip(8), skip(15)))
    assert settled(base, record(two, 20), None)[0] == two.run.skipped, "there is no config.yaml"
    assert settled(base, record(two, 20), with_skips(base, (skip(8),)))[0] == two.run.skipped, "it is an older one"
    assert settled(base, record(base, 20), with_skips(base, (skip(8),)))[0] == (), "the run has passed that step"


def test_a_skip_takes_the_place_of_those_ahead_of_it() -> None:
    base, known = config(), (skip(8), skip(15))
    now = add_skip(known, skip(11))
    assert now == (skip(8), skip(11))
    ahead = record(with_skips(base, known), 10)
    assert settled(base, ahead, with_skips(base, now))[0] == now, "though the checkpoint had another one ahead"


def test_a_run_without_a_checkpoint_goes_on_with_its_own_skips_alone() -> None:
    base = config()
    one = with_skips(base, (skip(8),))
    assert settled(base, None, None) == ((), [])
    assert settled(base, None, one) == ((skip(8),), [])
    other = base.model_copy(update={"run": base.run.model_copy(update={"seed": 99})})
    skipped, (warning,) = settled(other, None, one)
    assert skipped == ()
    assert "this run skips none of them" in warning


def test_a_config_may_say_what_the_run_records_and_nothing_else() -> None:
    base = config()
    one, two, other = (with_skips(base, skips) for skips in ((skip(8),), (skip(8), skip(15)), (skip(9),)))
    assert settled(one, None, None)[0] == (skip(8),), "a new run that is told so"
    assert settled(one, record(two, 20), two)[0] == two.run.skipped
    for saved, found in ((record(two, 20), two), (record(base, 20), base), (None, two)):
        with pytest.raises(ConfigError, match=r"run\.skipped is recorded by"):
            settled(other, saved, found)


def test_a_run_with_skips_is_the_run_of_its_older_checkpoints() -> None:
    base = config()
    check_same_run(record(base, 5), with_skips(base, (skip(8),)))


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    assert recorded_config(tmp_path) == {}
    base = config(run={"dir": str(tmp_path)})
    one = with_skips(base, (skip(8),))
    (tmp_path / "config.yaml").write_text(dump(one))
    assert resolve_skips(base, None, recorded_config(tmp_path), print) == one
    (tmp_path / "config.yaml").write_text("run: {skipped: [{step: x}]}")
    with pytest.raises(ConfigError, match=r"run\.skipped cannot be read \(0\.step: expected an integer\): restore it"):
        resolve_skips(base, None, recorded_config(tmp_path), print)


def test_going_back_ends_after_so_many_times_within_so_many_steps() -> None:
    settings = SpikesAct(max_rollbacks=2, within_steps=100)
    assert why_not_again((), 8, settings) is None
    assert why_not_again((skip(8),), 8, settings) is None, "bad batches may follow each other"
    assert "rolled back from steps 8, 8 already" in str(why_not_again((skip(8), skip(8)), 8, settings))
    twice = (skip(8), skip(50))
    assert "rolled back from steps 8, 50 already" in str(why_not_again(twice, 107, settings))
    assert why_not_again(twice, 108, settings) is None, "step 8 is 100 steps ago"
    assert why_not_again((skip(8), skip(500)), 60, settings) is None, "a step that lies ahead has not been made"


def test_skips_out_of_order_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.skipped begins at samples \[3360, 1680\]"):
        config(run={"dir": "x", "skipped": [skip(15).model_dump(), skip(8).model_dump()]})
