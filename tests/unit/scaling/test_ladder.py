"""Configs of a ladder: shapes, rates, stems and branches."""

from typing import Any

import pytest

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec.parameters import num_active_parameters, num_parameters
from pretrain.run_length.schedule import learning_rate
from pretrain.run_length.segments import segments
from pretrain.scaling import rules
from pretrain.scaling.ladder import LadderSpec, check_budget, check_limits, ladder, total_flops
from pretrain.scaling.shape import shaped
from pretrain.scaling.size import parameters_at_work
from tests.helpers.families import family_config
from tests.helpers.tiny import tiny_config


def base(**sections: Any) -> RunConfig:
    return tiny_config(**sections)


def spec(**changes: Any) -> LadderSpec:
    return LadderSpec(
        **{"sizes": (1e5, 2e5), "ratios": (20, 40, 80), "seeds": (1,), "rule": "olmo", "runs_dir": "/runs"} | changes
    )


def test_gpt3s_rule_gives_its_table_and_goes_on_beyond_it() -> None:
    table = {125e6: (6e-4, 0.5e6), 1.3e9: (2e-4, 1e6), 175e9: (0.6e-4, 3.2e6)}
    for size, (rate, batch) in table.items():
        found = rules.settings("gpt3", size, 1, base())
        assert (found.learning_rate, found.batch_tokens) == pytest.approx((rate, batch))
    between = rules.gpt3_rate(500e6)
    assert 2.5e-4 < between < 3e-4
    assert rules.gpt3_rate(50e6) > 6e-4
    assert rules.gpt3_rate(1e12) < 0.6e-4


def test_olmos_rule_is_its_formula() -> None:
    found = rules.settings("olmo", 108e6 * 8, 1, base())
    assert found.learning_rate == pytest.approx(0.0047 / 4)
    assert found.batch_tokens == pytest.approx(327_680 * 4)
    assert found.warmup_tokens == 108e6 * 8


def test_the_constant_rule_is_olmos_but_for_the_bases_rate() -> None:
    found, olmo = (rules.settings(rule, 1e6, 256, base()) for rule in ("constant", "olmo"))
    assert found.learning_rate == 1e-3
    assert (found.batch_tokens, found.warmup_tokens) == (olmo.batch_tokens, olmo.warmup_tokens)


def test_the_width_rule_divides_the_bases_rate_by_the_width() -> None:
    found = rules.settings("width", 1e6, 256, base())
    assert found.learning_rate == pytest.approx(1e-3 * 64 / 256)
    assert found.batch_tokens == 8 * 32


def test_the_mup_rule_is_constant_for_models_that_are_tuned_at_the_bases_width() -> None:
    found, constant = (ladder(base(), spec(rule=rule)) for rule in ("mup", "constant"))
    assert [run.config.optimizer for run in found] == [run.config.optimizer for run in constant]
    assert [run.config.batch for run in found] == [run.config.batch for run in constant]
    assert {run.config.model.base_width for run in found} == {base().model.hidden}
    assert len({run.config.model.width_ratio for run in found}) > 1
    assert all(run.config.model.mup is None for run in constant)


def test_a_rule_that_lowers_rates_is_refused_for_models_that_keep_theirs() -> None:
    tuned = rules.with_mup("mup", base())
    with pytest.raises(ConfigError, match="use --rule mup"):
        ladder(tuned, spec(rule="olmo"))


def test_batches_are_whole_micro_batches() -> None:
    assert rules.sequences(1000, 32, 4) == (32, 4)
    assert rules.sequences(70, 32, 4) == (2, 2)
    assert rules.sequences(1, 32, 4) == (1, 1)


@pytest.mark.parametrize("size", [5e4, 3e5, 5e6, 1e8])
def test_a_shape_has_the_size_and_the_bases_proportions(size: float) -> None:
    model = shaped(base().model, size)
    assert parameters_at_work(model) == pytest.approx(size, rel=0.1)
    assert model.hidden / model.heads == 16
    if size > 1e6:
        assert 0.5 < (model.hidden / model.layers) / (64 / 4) < 2


def test_parameters_at_work_are_all_but_the_tables() -> None:
    model = base().model
    tables = model.sequence_length * model.hidden
    assert parameters_at_work(model) == num_parameters(model, padded=False) - tables
    untied = base(model={"tie_word_embeddings": False}).model
    assert parameters_at_work(untied) == parameters_at_work(model)


def test_a_mixture_of_experts_has_the_size_of_what_a_token_passes_through() -> None:
    """So that compute is nearly the same multiple of N D at sizes whose experts are other parts of all parameters."""
    experts = {"count": 16, "top_k": 2, "ffn": 64, "shared": 1, "dense_layers": 1}
    mixture = family_config("llama", model={"experts": experts})
    runs = ladder(mixture, spec(sizes=(1e5, 1e6, 2e7), ratios=(20,)))
    models = [run.config.model for run in runs]
    for run, model in zip(runs, models, strict=True):
        assert run.parameters == num_active_parameters(model) - model.vocab_size * model.hidden  # a table of its own
        assert model.experts is not None
        assert model.experts.model_dump(exclude={"ffn"}) == mixture.model.experts.model_dump(exclude={"ffn"})
        assert model.expert_ffn_dim == model.hidden
        assert model.layers > 1
    ratios = [run.flops / (6 * run.parameters * run.tokens) for run in runs]
    assert max(ratios) / min(ratios) < 1.25
    of_all = [run.flops / (6 * num_parameters(run.config.model) * run.tokens) for run in runs]
    assert max(of_all) / min(of_all) > 1.5


def test_a_size_that_no_shape_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no model like the base, with heads of 16, has about 5,000 parameters"):
        shaped(base().model, 5e3)


def test_branches_take_up_the_stem_where_it_saves_and_its_rate_is_still_at_the_peak() -> None:
    runs = ladder(base(), spec(sizes=(1e5,)))
    stem, *branches = runs
    assert [run.stem for run in runs] == [None, stem.name, stem.name]
    assert [run.name for run in runs] == ["96.9k-x80", "96.9k-x20", "96.9k-x40"]
    kept, every = stem.config.checkpoint.keep, stem.config.checkpoint.every_steps
    for run in branches:
        change, steps = run.config.run.change, run.config.train.steps
        assert change is not None
        assert steps is not None
        folder = run.config.run.branch_from or ""
        assert folder.startswith(f"{stem.config.run.dir}/checkpoints/step-")
        begin = int(folder[-8:])
        assert begin % every == 0
        assert (stem.config.train.steps or 0) / every < kept
        assert 0.75 * steps <= begin <= 0.8 * steps
        assert change.settings["train"] == {"steps": steps, "tokens": None}
        assert change.settings["schedule"]["decay_steps"] == steps - begin
        (segment,) = segments(stem.config)
        peak = stem.config.optimizer.learning_rate
        assert learning_rate(segment.config, (begin, 0), segment.end) == peak
    last = stem.config.train.steps or 0
    assert learning_rate(segment.config, (last - 1, 0), segment.end) < 0.02 * peak
    whole = sum(run.tokens for run in runs) / stem.tokens
    assert total_flops(runs) / stem.flops == pytest.approx(1 + 0.22 * (whole - 1), rel=0.1)


def test_tokens_are_the_asked_ratio_of_the_size() -> None:
    for run in ladder(base(), spec(ratios=(30,))):
        assert run.stem is None
        assert run.tokens / run.parameters == pytest.approx(30, rel=0.02)


def test_each_size_has_its_number_of_seeds() -> None:
    runs = ladder(base(), spec(ratios=(20,), seeds=(3, 1)))
    assert [run.name for run in runs] == ["96.9k-x20-s0", "96.9k-x20-s1", "96.9k-x20-s2", "216k-x20"]
    assert [run.config.run.seed for run in runs] == [7, 8, 9, 7]


def test_a_sweep_has_a_run_for_each_part_of_the_rules_rate() -> None:
    runs = ladder(base(), spec(sizes=(1e5,), ratios=(20,), rates=(0.5, 1, 2)))
    assert [run.name for run in runs] == ["96.9k-x20-r0.5", "96.9k-x20-r1", "96.9k-x20-r2"]
    half, one, two = (run.config.optimizer.learning_rate for run in runs)
    assert (half, two) == pytest.approx((one / 2, 2 * one), rel=1e-3)


def test_impossible_ladders_are_refused() -> None:
    with pytest.raises(ConfigError, match="--seeds is one number, or one for each of the 2 sizes"):
        ladder(base(), spec(seeds=(1, 2, 3)))
    with pytest.raises(ConfigError, match="two of the sizes have one shape"):
        ladder(base(), spec(sizes=(1e5, 1.001e5)))
    with pytest.raises(ConfigError, match="too few to learn in"):
        ladder(base(), spec(ratios=(0.1,)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": (1e6, 1e300)}, r"--sizes: 1e\+300 parameters are more than the 1e\+14 of the largest ladder"),
        ({"seeds": (1_000_000,)}, "this ladder has 3,000,000 runs or more: make one of at most 10,000"),
        ({"rates": (1e-300,)}, "--rates are times the rule's rate, from 1e-06 to 1e\\+06"),
        ({"seeds": (1, 0)}, "--seeds are numbers of at least 1"),
    ],
)
def test_a_ladder_beyond_the_limits_is_refused(changes: dict[str, Any], message: str) -> None:
    check_limits(spec())
    with pytest.raises(ConfigError, match=message):
        check_limits(spec(**changes))


def test_a_ladder_above_the_budget_is_refused_with_its_cost_without_the_largest_size() -> None:
    runs = ladder(base(), spec())
    check_budget(runs, total_flops(runs))
    smaller = total_flops([run for run in runs if run.parameters < runs[-1].parameters])
    with pytest.raises(ConfigError, match=f"without its largest size, .*, it takes {smaller:.3g}".replace("+", r"\+")):
        check_budget(runs, 0.99 * total_flops(runs))
