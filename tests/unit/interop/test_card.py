"""The model card of an export."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PretrainedConfig

from pretrain.checkpoint.state import Record
from pretrain.config.run_config import RunConfig
from pretrain.interop.hf import card, source_model
from pretrain.interop.hf.source_model import Origin
from pretrain.model_spec.parameters import num_parameters, num_trained_parameters
from pretrain.run_dir.paths import RunDir
from tests.helpers.small_configs import config

CHANGE = {"why": "a spike", "step": 50, "settings": {"optimizer.learning_rate": 0.5}}
SECTION = """
Batch, optimizer and schedule are as they were at the start of the run, which

- changed at step 50, a spike: optimizer.learning_rate from 1.0 to 0.5

Data:
"""


def written(step: int, *changes: dict[str, Any]) -> str:
    """The model card of a checkpoint after `step` steps of a run with `changes`."""
    return _card(step, config(run={"dir": "unused", "changes": list(changes)}))


def _card(step: int, run: RunConfig, **more: Any) -> str:
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
        **more,
    )


def test_settings_that_changed_in_the_middle_are_named_beside_those_of_the_start() -> None:
    said = written(60, CHANGE)
    assert "peak learning rate 1, " in said
    assert SECTION in said


def test_a_change_that_no_step_was_made_with_is_not_named() -> None:
    for said in (written(60), written(50, CHANGE)):
        assert "changed" not in said
        assert "input) |\n\nData:\n" in said


def _lora(**start: Any) -> RunConfig:
    finetune = {"lora": {"rank": 2, "alpha": 4, "targets": ["qkv"]}}
    return config(run={"dir": "runs/sst2", "name": "classification", **start}, finetune=finetune)


def test_merged_updates_are_not_counted_beside_the_weights() -> None:
    run = _lora()
    size, updates = num_parameters(config().model, padded=False), num_trained_parameters(run.model)
    assert f"A gpt model of {size:,} parameters, exported" in _card(1, run)
    assert f"{updates:,} trained parameters beside a gpt model of {size:,} parameters" in _card(1, run, library="peft")


def test_a_model_that_began_as_another_names_it_and_its_license() -> None:
    said = _card(1, _lora(start_from="runs/base"), origin=Origin(name="org/base at 1a2b", license="apache-2.0"))
    assert "---\nlibrary_name: transformers\nlicense: apache-2.0\ntags:" in said
    for row in ("started from | runs/base", "imported from | org/base at 1a2b", "imported model | apache-2.0"):
        assert f"{row} |\n" in said
    assert "# sst2\n" in said, "its directory's name: that of the config is the same for every data set"
    unknown = _card(1, _lora(start_from="runs/base"), origin=Origin(name="base", license=None))
    assert "license:" not in unknown
    assert "imported model | not stated" in unknown
    assert "# classification\n" in _card(1, _lora())


@pytest.mark.parametrize(
    ("readme", "license"),
    [
        ("---\ntags: [a]\nlicense: apache-2.0\n---\nlicense: mit\n", "apache-2.0"),
        ('---\nlicense: "mit"\n---\n', "mit"),
        ("---\ntags: [a]\n---\nlicense: mit\n", None),
        (None, None),
    ],
)
def test_the_license_of_an_import_is_what_its_card_states(
    readme: str | None, license: str | None, tmp_path: Path
) -> None:
    if readme is not None:
        (tmp_path / "README.md").write_text(readme)
    kept = source_model.read(tmp_path, PretrainedConfig(), "org/base at 1a2b")
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.source_model.write_text(kept.text())
    assert source_model.origin_of(run.checkpoint(1)) == Origin(name="org/base at 1a2b", license=license)
    assert source_model.origin_of(RunDir(tmp_path / "other").checkpoint(1)) is None
