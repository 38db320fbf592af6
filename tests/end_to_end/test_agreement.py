"""Ranks that a launcher started differently end within seconds, with one sentence, before anything is built."""

import time
from pathlib import Path

import pytest

from pretrain.process.local import free_port
from tests.helpers import command
from tests.helpers.breadth import slow
from tests.helpers.command import LAUNCHER, Command

_WITHIN_S = 60  # forked commands import nothing anew; a hang takes health.timeout_s, ten minutes


def launched(*argument_lists: list[object]) -> list[Command]:
    """One command a rank, each with arguments of its own, at their end."""
    port, world = free_port(), len(argument_lists)
    ranks = []
    for rank, arguments in enumerate(argument_lists):
        values = (rank, world, 0, 1, "127.0.0.1", port)  # a machine each
        environment = {name: str(value) for name, value in zip(LAUNCHER, values, strict=True)}
        ranks.append(Command(*arguments, environment=environment))
    deadline = time.monotonic() + _WITHIN_S
    for rank in ranks:
        rank.wait(deadline - time.monotonic())
    return ranks


def verdict(ranks: list[Command], status: int = 2) -> str:
    """The one sentence, of rank 0."""
    assert [rank.poll() for rank in ranks] == [status] * len(ranks), [rank.printed for rank in ranks]
    first, *others = ranks
    assert first.stderr.count("\n") == 1, first.stderr
    assert [rank.printed for rank in others] == [""] * len(others)
    return first.stderr


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        slow(("optimizer.learning_rate=1e-3", "optimizer.learning_rate=2e-3", "rate is 0.001 on rank 0 and 0.002")),
        ("model.layers=2", "model.layers=4", "model.layers is 2 on rank 0 and 4 on rank 1"),
        slow(("health.timeout_s=600", "health.timeout_s=500", "health.timeout_s is 600 on rank 0 and 500 on rank 1")),
        ("model.layers=2", "model.layers=0", "rank 1 of 2: "),  # which it finds before it meets the other
    ],
)
def test_ranks_with_other_configs_name_the_key_and_the_ranks(first: str, second: str, words: str, config: Path) -> None:
    said = verdict(launched(["train", config, first], ["train", config, second]))
    assert words in said
    assert not (config.parent / "run").exists()


def test_other_data_under_one_name_is_named(config: Path, text: Path) -> None:
    other = config.parent / "other"
    settings = [f"input={text}", f"output={other}", "tokenizer.vocabulary=500", "validation_fraction=0.2"]
    assert command.run("data", "build", "configs/data/text.yaml", *settings).returncode == 0
    said = verdict(launched(["train", config], ["train", config, f"data.path={other}"]))
    assert "the data of data.sources[0] is" in said


def test_the_same_data_elsewhere_is_no_difference(config: Path, dataset: Path) -> None:
    elsewhere = config.parent / "elsewhere"
    elsewhere.symlink_to(dataset)
    ranks = launched(["train", config, "train.steps=4"], ["train", config, "train.steps=4", f"data.path={elsewhere}"])
    assert [rank.poll() for rank in ranks] == [0, 0], [rank.printed for rank in ranks]


@pytest.mark.slow
def test_verify_agrees_first(config: Path) -> None:
    layouts = (["verify", config, "--layouts", layout, "--out", config.parent / "v.json"] for layout in ("tp2", "pp2"))
    assert "--layouts is ['tp2pp1dp1'] on rank 0 and ['tp1pp2dp1'] on rank 1" in verdict(launched(*layouts))


@pytest.mark.slow
def test_eval_agrees_first(config: Path, uninterrupted: Path) -> None:
    asked = ["eval", uninterrupted, "--tasks", "heldout", "--out", config.parent / "report"]
    said = verdict(launched([*asked, "--seed", "1"], [*asked, "--seed", "2"]))
    assert "--seed is 1 on rank 0 and 2 on rank 1" in said
