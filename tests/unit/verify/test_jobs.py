"""What verify runs: small, of the same kind, and legal on every layout asked for."""

from pathlib import Path

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.plan.layout import Layout, plan_layout
from pretrain.plan.layout_names import every_kind, parse
from pretrain.plan.parameters import num_parameters
from pretrain.verify.jobs import fits, plan, shrink

CONFIGS = sorted(path for path in Path("configs").glob("*/*.yaml") if path.parent.name != "data")


def _load(path: Path) -> RunConfig:
    return load(RunConfig, path, ["run.dir=unused"])


@pytest.mark.parametrize("world", [2, 4, 6, 8])
@pytest.mark.parametrize("path", [p for p in CONFIGS if p.stem != "common"], ids=str)
def test_every_published_config_is_made_small_for_every_kind_of_layout(path: Path, world: int) -> None:
    config, layouts = _load(path), every_kind(world)
    small = shrink(config, layouts)
    assert num_parameters(small.model) < 20e6
    reference, jobs = plan(small, layouts)
    assert reference.config.precision == "fp32"
    assert {job.layout for job in jobs} >= set(layouts)
    for job in jobs:
        plan_layout(job.config, job.layout.world)  # legal
    kept = ("norm", "tied_head", "dropout", "attention_dropout", "family", "norm_eps", "init_std")
    assert [getattr(small.model, key) for key in kept] == [getattr(config.model, key) for key in kept]
    assert small.model.attention.pattern == config.model.attention.pattern
    assert small.model.layers >= len(config.model.attention.pattern), "every pattern of attention occurs"
    assert small.optimizer == config.optimizer


def test_jobs_run_in_fp32_and_in_the_configs_precision() -> None:
    config = shrink(_load(Path("configs/gpt3/125m.yaml")), [parse("tp2", 1)])
    assert config.precision == "bf16"
    reference, jobs = plan(config, [parse("tp2", 1), parse("tp2", 1)])
    titles = [f"{job.title} {job.config.precision}" for job in jobs]
    assert titles == ["one rank fp32", "tp2 fp32", "one rank bf16", "tp2 bf16"]
    assert reference.config.batch.micro_sequences != jobs[0].config.batch.micro_sequences


def test_full_size_leaves_out_layouts_that_do_not_fit_and_refuses_them_when_named() -> None:
    config = load(RunConfig, "configs/debug/gpt.yaml", ["model.vocabulary=2048"])
    assert fits(config, parse("tp4", 1))
    assert not fits(config, parse("tp8", 1)), "4 heads"
    with pytest.raises(ConfigError, match=r"does not divide model\.heads"):
        plan(config, [parse("tp8", 1)])


def test_a_stage_of_zero_that_there_is_not_is_named() -> None:
    config = load(RunConfig, "configs/debug/gpt.yaml", ["model.vocabulary=2048"])
    with pytest.raises(ConfigError, match=r"dp4\+zero4.*parallel.zero"):
        plan(config, [Layout(4, 1, 1, 1, False, 4)])
    with pytest.raises(ConfigError, match=r"parallel\.zero=3 is not among what megatron-core"):
        plan(config, [Layout(4, 1, 1, 1, False, 3, "megatron")])
