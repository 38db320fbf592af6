"""What a run's samples come from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.build import build
from data_pipeline.config import BuildConfig
from pretrain.config.schema import RunConfig

SIZES = {"large": 60, "small": 20}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two datasets of pairs with one tokenizer."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "held.jsonl").write_text('{"source": "ab ba", "target": "ba ab"}\n')
    made: list[Path] = []
    for name, size in SIZES.items():
        lines = [f'{{"source": "ab {n % 7} ba", "target": "{name} {n % 7} ab"}}\n' for n in range(size)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
        tokenizer: dict[str, Any] = {"path": made[0] / "tokenizer.model"} if made else {"vocabulary": 290}
        values = {
            "input": str(folder / f"{name}.jsonl"), "output": folder / name, "pair_fields": ["source", "target"],
            "validation_input": str(folder / "held.jsonl"), "tokenizer": tokenizer,
        }  # fmt: skip
        build(BuildConfig.model_validate(values))
        made.append(folder / name)
    return made


def _shares(tasks: list[Path], mixing: dict[str, Any] | None) -> list[float]:
    from pretrain.stream import open_stream

    values = {
        "run": {"dir": "unused"}, "train": {"steps": 1}, "batch": {"sequences": 8}, "optimizer": {"learning_rate": 1},
        "model": {
            "family": "t5", "layers": 1, "hidden": 8, "heads": 1, "sequence_length": 64, "target_length": 64,
            "positions": "relative",
        },
        "objective": {"name": "pairs"},
        "data": {"sources": [{"path": str(path)} for path in tasks], "mixing": mixing},
    }  # fmt: skip
    stream, _ = open_stream(RunConfig.model_validate(values))
    sources = stream.batch(0, 1000).sample_ids[:, 0]
    return (np.bincount(sources, minlength=2) / 1000).tolist()


@pytest.mark.parametrize(
    ("mixing", "large"),
    [
        (None, 0.5),
        ({"name": "equal"}, 0.5),
        ({"name": "proportional"}, 60 / 80),
        ({"name": "proportional", "cap": 30}, 30 / 50),
        ({"name": "temperature", "temperature": 2}, 60**0.5 / (60**0.5 + 20**0.5)),
    ],
)
def test_sources_are_mixed_at_the_rates_of_the_study(
    mixing: dict[str, Any] | None, large: float, tasks: list[Path]
) -> None:
    assert _shares(tasks, mixing)[0] == pytest.approx(large, abs=2e-3)


def test_weights_and_mixing_do_not_go_together() -> None:
    from pydantic import ValidationError

    from pretrain.config.schema import Data

    with pytest.raises(ValidationError, match="leave out weight"):
        Data.model_validate({"sources": [{"path": "a", "weight": 2}, {"path": "b"}], "mixing": {"name": "equal"}})
