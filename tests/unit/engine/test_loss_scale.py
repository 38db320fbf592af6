"""The loss scale of fp16, and that a checkpoint keeps all of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_pipeline.batch import Cursor
from pretrain.config.loss_scale import LossScaling
from pretrain.engine.loss_scale import DynamicLossScale, make_loss_scale
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.run_dir.paths import RECORD
from pretrain.run_length.ramp import tokens_of
from pretrain.training import resume
from tests.helpers.tiny import tiny_config

SETTINGS = LossScaling(initial=1024.0, growth_interval=4, minimum=256.0)


def test_grows_after_so_many_steps_without_overflow_and_halves_at_one() -> None:
    scale = DynamicLossScale(SETTINGS)
    seen = []
    for overflows in (0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1):
        if overflows:
            assert scale.overflowed()
        else:
            scale.stepped()
        seen.append(scale.state)
    assert seen == [
        (1024, 1), (1024, 2), (1024, 3), (512, 0), (512, 1), (512, 2), (512, 3), (1024, 0), (1024, 1), (512, 0),
        (256, 0),
    ]  # fmt: skip
    assert not scale.overflowed(), "there is no lower one"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_that_needs_no_scale_has_one_that_does_nothing(precision: str) -> None:
    scale = make_loss_scale(tiny_config(precision=precision))
    scale.begin()
    scale.load((1024.0, 3))
    scale.stepped()
    assert not scale.overflowed()
    assert (scale.value, scale.state, scale.sum_factor(128)) == (None, None, 1.0)


def test_the_scale_of_fp16_is_that_of_a_mean_over_a_sequence() -> None:
    scale = make_loss_scale(tiny_config(precision="fp16", loss_scale={"initial": 1024.0}))
    assert (scale.value, scale.sum_factor(128)) == (1024.0, 8.0)


class _Engine:
    """What a checkpoint's record and resumption touch of an engine in fp16."""

    updates, sharding = 0, None

    def __init__(self) -> None:
        self.loss_scale = DynamicLossScale(SETTINGS)

    state_loaded = MegatronEngine.state_loaded

    def state(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("good_steps", [1, 3])
def test_a_resumed_run_goes_on_counting_steps_without_overflow(
    good_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count passes through a checkpoint's record, saved and loaded as a run does."""
    first, second = _Engine(), _Engine()
    for _ in range(good_steps):
        first.loss_scale.stepped()
    config = tiny_config(precision="fp16")
    run: Any = SimpleNamespace(engine=first, layout="layout", config=config)
    state: Any = SimpleNamespace(
        config=config,
        step=6,
        tokens=tokens_of(config, 6),
        cursor=Cursor(6, "f"),
        bad_steps=SimpleNamespace(recent=None),
    )
    written = resume.record_of(run, state)
    (tmp_path / RECORD).write_bytes(written.encode())
    for name in ("newest_valid", "load"):
        monkeypatch.setattr(resume.store, name, lambda *_: tmp_path)
    monkeypatch.setattr(resume, "run_on_rank_0", lambda what, work, group: () if "changes" in what else {})
    run.engine = second
    monkeypatch.setattr(resume, "_state", lambda session, config, **state: state)
    session: Any = SimpleNamespace(run=run, log=SimpleNamespace(warn=None), group=None, checkpoints=tmp_path)
    restored: Any = resume.resume(session)
    assert restored["step"] == 6
    assert second.loss_scale.state == (1024.0, good_steps)
    for _ in range(4 - good_steps):
        assert second.loss_scale.value == 1024.0
        second.loss_scale.stepped()
    assert second.loss_scale.state == (2048.0, 0)
