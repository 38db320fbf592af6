"""T5's experiments as runs (docs/multitask.md): the tasks are what they say, and the shipped configs mix text and
tasks at exact rates after any number of samples."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from examples import text_tasks
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.ledger import source_usage
from pretrain.data.resolve import resolve
from pretrain.data.stream import open_stream
from tests.helpers.datasets import build_dataset, make_documents

RATES = {
    "t5-multitask": {"text": 3, "sum": 2, "largest": 2, "last": 1},
    "t5-leave-one-out": {"text": 3, "largest": 2, "last": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder from which the page's commands are run."""
    folder = tmp_path_factory.mktemp("multitask")
    (folder / "datasets").mkdir()
    build_dataset(make_documents(0, 300), folder / "datasets", "text")
    assert text_tasks.main(folder / "datasets" / "tasks") == 0
    return folder


def test_answers_are_right_and_held_out_rows_are_new(folder: Path) -> None:
    right: dict[str, Callable[[str], str]] = {
        "sum": lambda text: str(sum(map(int, text.split(" and ")))),
        "largest": lambda text: str(max(map(int, text.split()))),
        "last": lambda text: text.split()[-1],
    }
    for name, size in text_tasks.SIZES.items():
        files = [folder / "datasets" / "tasks" / name / f"{split}.jsonl" for split in ("train", "validation")]
        train, validation = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
        assert (len(train), len(validation)) == (size, text_tasks.VALIDATION)
        assert len({row["input"] for row in train + validation}) == size + text_tasks.VALIDATION
        assert all(row["target"] == right[name](row["input"]) for row in train + validation)


@pytest.mark.parametrize("name", RATES)
def test_sources_are_mixed_at_exact_rates_after_any_number_of_samples(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file = Path(f"configs/debug/{name}.yaml").resolve()
    monkeypatch.chdir(folder)
    config = resolve(load(RunConfig, config_file))
    stream, _ = open_stream(config)
    weights = np.array(list(RATES[name].values()))
    assert [source.called for source in config.data.sources] == list(RATES[name])
    drawn = stream.sample_ids(0, 2000)[:, 0]
    counts = (drawn[:, None] == np.arange(len(weights))).cumsum(axis=0)
    expected = np.arange(1, 2001)[:, None] * weights / weights.sum()
    assert np.abs(counts - expected).max() <= 1 - 1 / (2 * len(weights) - 2)
    for samples in (1, 7, 160, 2000):
        usage = source_usage(config, stream, samples)
        assert [one.samples for one in usage] == counts[samples - 1].tolist()
    source = stream.batch(0, 16).source
    assert source is not None
    assert np.array_equal(source, drawn[:16])
