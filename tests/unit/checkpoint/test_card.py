"""The model card of an export."""

from typing import Any

from pretrain.checkpoint.hf import card
from pretrain.checkpoint.state import Record
from tests.helpers.small_configs import config

CHANGE = {"why": "a spike", "step": 50, "settings": {"optimizer.learning_rate": 0.5}}
SECTION = """
Batch, optimizer and schedule are as they were at the start of the run, which

- changed at step 50, a spike: optimizer.learning_rate from 1.0 to 0.5

Data:
"""


def written(step: int, *changes: dict[str, Any]) -> str:
    """The model card of a checkpoint after `step` steps of a run with `changes`."""
    run = config(run={"dir": "unused", "changes": list(changes)})
    return card.text(
        Record(
            step=step,
            updates=step,
            tokens=step,
            cursor={},
            config=run.model_dump(mode="json"),
            layout="tp1pp1dp1",
            versions={},
        ),
        run,
        "GPT2",
        1e-6,
    )


def test_settings_that_changed_in_the_middle_are_named_beside_those_of_the_start() -> None:
    said = written(60, CHANGE)
    assert "peak learning rate 1, " in said
    assert SECTION in said


def test_a_change_that_no_step_was_made_with_is_not_named() -> None:
    for said in (written(60), written(50, CHANGE)):
        assert "changed" not in said
        assert "input) |\n\nData:\n" in said
