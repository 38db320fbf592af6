"""What a start says about its speed."""

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import plan_layout
from pretrain.observe.speed_notes import SpeedNotes
from pretrain.plan.planner import with_vocabulary
from pretrain.process import compilation

DENSE = "model.attention.pattern=[dense]"


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "seconds", lambda: 0.0)


def notes(name: str, *overrides: str, device: str = "NVIDIA H200") -> SpeedNotes:
    config = with_vocabulary(
        load(RunConfig, name, ["run.dir=unused", "parallel.tensor=1", "parallel.pipeline=1", *overrides])
    )
    return SpeedNotes(config, plan_layout(config, 1), device)


def said(speed: SpeedNotes, found: list[float | None]) -> dict[int, str]:
    """Sentences by the number of steps after which they came; the run has resumed after 1,000."""
    return {n: note for n, mfu in enumerate(found, 1) for note in speed.after(1000 + n, 0.5, mfu)}


def test_after_fifty_steps_mfu_stands_beside_the_plan_and_a_measured_row_once() -> None:
    found = said(notes("gpt3/350m", DENSE, "batch.micro_sequences=8"), [0.01] * 10 + [0.33, 0.35] * 20 + [0.1] * 100)
    assert list(found) == [50]
    start, plan, row = found[50].split("; ")
    assert start == "speed: MFU 34.0%, the median of 40 steps"
    assert plan.startswith("the plan expects ")
    assert row == "gpt3/350m micro=8 model.attention.pattern=[dense] reached 35.4% on one h200"


def test_a_slow_run_is_sent_to_the_page_on_speed() -> None:
    (found,) = said(notes("gpt3/350m", DENSE, "batch.micro_sequences=8"), [0.1] * 50).values()
    assert found.endswith(". docs/performance.md has what slows a step")


@pytest.mark.parametrize(
    ("config", "device", "mfu"),
    [("gpt3/350m", "NVIDIA H200 MIG 1g.18gb", 0.3), ("gpt3/350m", "cpu", None), ("debug/canine", "NVIDIA H200", 0.3)],
    ids=["a slice of a GPU", "a CPU", "a model that is not planned and was not measured"],
)
def test_nothing_is_said_where_there_is_nothing_to_compare_with(config: str, device: str, mfu: float | None) -> None:
    assert not said(notes(config, "precision=bf16", device=device), [mfu] * 60)


def test_the_first_step_says_what_compiling_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of what the process compiled before the run."""
    monkeypatch.setattr(compilation, "seconds", lambda: 100.0)
    monkeypatch.setattr(compilation, "folders", lambda: ["/tmp/a", "/home/b"])
    speed = notes("gpt3/350m")
    assert not said(notes("gpt3/350m"), [None] * 3)
    monkeypatch.setattr(compilation, "seconds", lambda: 112.34)
    assert said(speed, [None] * 3) == {
        1: "step 1,001 took 0.5 s. Compiling kernels has taken 12.3 s; later starts find them in /tmp/a and /home/b"
    }
