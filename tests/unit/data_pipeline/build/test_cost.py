"""What a large build takes, by the rates of a small one."""

import json
from pathlib import Path

import pytest

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.build.cost import BuildRates, StageRate, measure, project
from data_pipeline.common.grid import Grid
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from pretrain.commands.plan import main
from pretrain.config.load import dump
from tests.helpers.datasets import Silent, make_documents, settings

STEPS = ["repair", {"name": "dedup_exact"}]


@pytest.fixture
def config(tmp_path: Path) -> BuildConfig:
    (tmp_path / "in.txt").write_text("\n\n".join(make_documents(0, 60)))
    return settings(input=str(tmp_path / "in.txt"), output=tmp_path / "out", steps=STEPS)


def rates(**changes: object) -> BuildRates:
    stages = [
        StageRate(name="pass-1-of-1", fixed_s=1.0, growing_s=10.0, grows="input", serial=False),
        StageRate(name="tokenizer", fixed_s=0.0, growing_s=4.0, grows="training", serial=True),
        StageRate(name="step-1-decontaminate-prepare-1", fixed_s=2.0, growing_s=1.0, grows="no", serial=True),
        StageRate(name="finishing", fixed_s=0.0, growing_s=0.5, grows="input", serial=True),
    ]
    values = {"machine": "a", "steps": [], "input_bytes": 10**6, "text_bytes": 2 * 10**6, "kept_bytes": 5 * 10**5,
              "tokens": 10**5, "stages": stages}  # fmt: skip
    return BuildRates.model_validate({**values, **changes})


def test_measuring_builds_the_input_and_times_every_stage(config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    found = measure(config, tmp_path / "there")
    assert build(config, Silent)
    made = Dataset(config.output).manifest
    assert Dataset(tmp_path / "there" / "full").manifest.identity == made.identity
    assert found.input_bytes == (tmp_path / "in.txt").stat().st_size
    assert found.tokens == sum(split.tokens for split in made.splits.values())
    assert found.steps == ["repair", "dedup_exact"]
    stages = {stage.name: stage for stage in found.stages}
    assert {"digests", "pass-1-of-2", "pass-2-of-2", "sample", "tokenizer", "encoding", "writing"} <= stages.keys()
    assert sum(stage.growing_s for stage in found.stages) > 0
    assert {name for name, stage in stages.items() if stage.serial} == {"tokenizer", "finishing"}
    assert {name for name, stage in stages.items() if stage.grows != "input"} == {"tokenizer"}


def test_seconds_grow_with_what_a_stage_reads_and_share_the_cores() -> None:
    config = BuildConfig(
        input="x", output=Path("y"), piece_bytes=10**6, shard_tokens=10**6, member_tokens=10**5,
        tokenizer={"training_bytes": 10**6},  # type: ignore[arg-type]
    )  # fmt: skip
    cost = project(config, rates(), 10**9, 50)
    stages = {stage.name: stage for stage in cost.stages}
    assert (cost.chunks, cost.tokens, cost.shards) == (2000, 10**8, 100)
    assert cost.members == 1000 + 100
    grid = Grid(2000, 100)
    assert cost.cells == grid.row_groups * grid.column_groups == len(list(grid.cells()))
    assert cost.tasks == 1 + 2000 * 2 + cost.cells + 2 * 100
    assert stages["pass-1-of-1"].core_seconds == 10_001
    assert stages["pass-1-of-1"].seconds == 10_001 / 50 + 10_001 / 2000
    assert stages["tokenizer"].core_seconds == stages["tokenizer"].seconds == 8  # to 10^6 of its training's bytes
    assert stages["step-1-decontaminate-prepare-1"].seconds == 3
    assert stages["finishing"].seconds == 500
    assert cost.core_hours == pytest.approx((10_001 + 8 + 3 + 500) / 3600)
    assert cost.hours == pytest.approx((10_001 / 50 + 10_001 / 2000 + 8 + 3 + 500) / 3600)


def test_units_are_of_the_size_that_so_much_input_has_and_only_so_many_cores_work() -> None:
    config = BuildConfig(input="x", output=Path("y"), tokenizer={"training_bytes": 10**6})  # type: ignore[arg-type]
    assert project(config, rates(), 10**12, 50).chunks == -(-2 * 10**12 // 2**25)
    few = project(config.model_copy(update={"piece_bytes": 10**6}), rates(), 2 * 10**6, 50)
    assert (few.chunks, few.cells) == (4, 0)
    assert few.stages[0].seconds == 21 / 4 + 21 / 4


def test_what_steps_prepare_grows_only_with_input_that_it_is_made_of(tmp_path: Path) -> None:
    for seed, name in enumerate(("in", "more", "evaluation")):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(make_documents(seed, 30)))
    files = [str(tmp_path / "in.txt"), str(tmp_path / "more.txt")]
    for against, grows in (("evaluation", "no"), ("more", "input")):
        step = {"name": "decontaminate", "against": str(tmp_path / f"{against}.txt")}
        config = settings(input=files, output=tmp_path / "out", steps=[step])
        (tmp_path / grows).mkdir()
        found = {stage.name: stage for stage in measure(config, tmp_path / grows).stages}
        assert found["step-1-decontaminate-prepare-1"].grows == grows


def test_rates_of_other_steps_are_refused(config: BuildConfig) -> None:
    with pytest.raises(
        DataError, match="of the steps repair, and the config has repair, dedup_exact: measure again with"
    ):
        project(config, rates(steps=["repair"]), 10**9, 50)


def test_the_command_stores_rates_and_plans_with_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.txt").write_text("\n\n".join(make_documents(0, 60)))
    kinds = ["txt_documents=paragraph", "tokenizer.type=bytes"]
    asked = ["data", "data/text", *kinds, f"input={tmp_path}/in.txt", f"output={tmp_path}/out"]
    assert main([*asked, "--measure", str(tmp_path / "rates.yaml")]) == 0
    assert not (tmp_path / "out").exists()
    capsys.readouterr()
    assert (
        main([*asked, "--rates", str(tmp_path / "rates.yaml"), "--nodes", "4", "--cores", "2", "--bytes", "5MB"]) == 0
    )
    said = capsys.readouterr().out
    assert said.startswith("5,000,000 bytes on 4 nodes of 2 cores")
    assert "in all" in said
    for wrong in (["--nodes", "4"], ["--rates", "x", "--measure", "y"], ["--bytes", "many"]):
        with pytest.raises(Exception, match=r"needed|of its own|no number of bytes"):
            main([*asked, *wrong])


@pytest.mark.parametrize(
    ("asked", "size"), [([], 10**6), (["--bytes", "5MB"], 5 * 10**6), (["--bytes", "50TB"], 5 * 10**13)]
)
def test_the_command_plans_for_all_cores_of_all_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str], size: int
) -> None:
    (tmp_path / "in.txt").write_text("word " * (10**6 // 5))
    (tmp_path / "rates.yaml").write_text(dump(rates()))
    words = ["data", "data/text", f"input={tmp_path}/in.txt", f"output={tmp_path}/out", "tokenizer.type=bytes"]
    machines = ["--rates", f"{tmp_path}/rates.yaml", "--nodes", "100", "--cores", "64", "--json"]
    assert main([*words, *machines, *asked]) == 0
    said = json.loads(capsys.readouterr().out)
    config = BuildConfig(input="x", output=Path("y"), tokenizer={"type": "bytes"})  # type: ignore[arg-type]
    cost = project(config, rates(), size, 6400)
    for name in ("input_bytes", "tokens", "chunks", "shards", "members", "cells", "tasks", "hours", "core_hours"):
        assert said[name] == getattr(cost, name), name
    assert said["input_bytes"] == size


@pytest.mark.parametrize("executor", ["folder", "processes"])
def test_the_executor_is_no_part_of_what_is_built(config: BuildConfig, executor: str) -> None:
    assert build(config, Silent)
    again = settings(**{**config.model_dump(include={"input", "output"}), "steps": STEPS}, executor=executor, workers=2)
    assert not build(again, Silent)
