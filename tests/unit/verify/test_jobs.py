"""What verify runs: small, of the same kind, and legal on every layout asked for."""

import math
from pathlib import Path

import pytest

from pretrain.config.load import load
from pretrain.config.parallel import Parallel
from pretrain.config.parts.registry import PARTS
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, plan_layout, settings_on
from pretrain.layout.names import layouts_to_verify, parse_layout
from pretrain.model_spec.parameters import num_parameters
from pretrain.model_spec.split import split_layers
from pretrain.run_length.ramp import batch_sizes
from pretrain.verify.jobs import fits, plan
from pretrain.verify.shrink import shrink
from tests.helpers.breadth import only
from tests.helpers.shipped import NO_RUNS

CONFIGS = sorted(path for path in Path("configs").glob("*/*.yaml") if path.parent.name not in NO_RUNS)
CONFIGS = [path for path in CONFIGS if path.stem not in ("common", "t5-multitask", "t5-leave-one-out")]
"""but for those that name data sets, which would have to be there"""


def _load(path: str | Path, *overrides: str) -> RunConfig:
    return load(RunConfig, path, ["run.dir=unused", *overrides])


def _is_refused(config: RunConfig, layout: Layout) -> bool:
    parallel = Parallel.model_validate(settings_on(config.parallel, layout))
    return any(part.refuses(config.model, parallel) for part in PARTS.values())


def _with_teacher(config: RunConfig) -> RunConfig:
    """The config as its teacher's checkpoint completes it."""
    if config.distillation.teacher is None:
        return config
    teacher = _load("configs/bert/base.yaml").model.model_dump(mode="json")
    return config.model_copy(update={"distillation": config.distillation.model_copy(update={"teacher_model": teacher})})


LIKE_OTHERS = (
    *("byt5", "deberta-v2", "deepseek-v2", "gpt2", "llama", "llama1", "llama2", "olmoe", "qwen2", "qwen3", "qwen3-moe"),
    *("roberta", "smollm2", "t5-v1.1", "xlm", "xlm-r"),
)
"""folders whose models have the parts of another folder's, in other sizes"""
ONE_OF_EACH = [path for path in {one.parent: one for one in CONFIGS}.values() if path.parent.name not in LIKE_OTHERS]


@pytest.mark.parametrize("world", only([6], [2, 4, 6, 8]))
@pytest.mark.parametrize("path", only(ONE_OF_EACH, CONFIGS), ids=str)
def test_every_published_config_is_made_small_for_every_kind_of_layout(path: Path, world: int) -> None:
    config, layouts = _with_teacher(_load(path)), layouts_to_verify(world)
    shares = config.model.layers_share_by is not None or config.model.positions.name == "disentangled"
    if shares:  # in one chunk of each stage
        layouts = [layout for layout in layouts if layout.virtual == 1]
    if config.model.memory_length:  # of whole rows, on stages that see them once
        layouts = [layout for layout in layouts if not layout.sequence and layout.context == layout.virtual == 1]
    if config.distillation.compares_layers:  # where all of them and of a row are
        layouts = [layout for layout in layouts if layout.pipeline == layout.context == layout.virtual == 1]
    if config.model.downsampling is not None:  # of whole sequences
        layouts = [layout for layout in layouts if not layout.sequence and layout.context == 1]
    if not config.model.capabilities.self_attention:  # whose part says what else it takes
        layouts = [layout for layout in layouts if not _is_refused(config, layout)]
    jobs = plan(config, layouts)
    assert {job.layout for job in jobs} >= set(layouts)
    models = {job.config.model.model_dump_json(): job.config.model for job in jobs}
    most = 50e6 if config.model.num_kv_heads < config.model.heads else 25e6  # there with twice as many heads
    assert all(num_parameters(model) < most for model in models.values())
    for job in jobs:
        plan_layout(job.config, job.layout.world)  # legal
        small = job.config
        assert job.reference.precision == "fp32"
        kept = ("norm", "tie_word_embeddings", "dropout", "attention_dropout", "family", "norm_eps")
        assert [getattr(small.model, key) for key in kept] == [getattr(config.model, key) for key in kept]
        if config.model.recurrence is None:
            assert small.model.init == config.model.init
        elif small.model.init.name == "normal":  # by which a step multiplies a state
            gains = [model.init_std * math.sqrt(model.hidden) for model in (small.model, config.model)]
            assert gains[0] == pytest.approx(gains[1])
        names = [[pattern.name for pattern in one.model.attention.pattern] for one in (small, config)]
        assert names[0] == names[1]
        assert small.model.layers >= len(config.model.attention.pattern), "every pattern of attention occurs"
        assert small.optimizer.model_copy(update={"learning_rate": 1}) == config.optimizer.model_copy(
            update={"learning_rate": 1}
        )


@pytest.mark.parametrize("path", ["configs/debug/gpt.yaml", "configs/debug/t5.yaml", "configs/debug/bart.yaml"])
def test_what_a_small_model_would_hide_is_there(path: str) -> None:
    for job in plan(_load(path), layouts_to_verify(4)):
        model, layout = job.config.model, job.layout
        chunks = layout.pipeline * layout.virtual
        if model.is_encoder_decoder:
            assert min(split_layers(model, chunks)) >= 2, "layers of a chunk have an order"
            assert model.target_length != model.sequence_length
        else:
            assert model.layers >= 2 * chunks
        assert model.sequence_length // 2 > 64
        few, many = batch_sizes(job.config.batch)
        per_rank = many // layout.data // job.config.batch.micro_sequences
        assert per_rank > 2 * layout.pipeline, "micro-batches that a pipeline holds at once, and more"
        assert few < many


@pytest.mark.parametrize(("heads", "head_dim", "expected"), [(8, None, None), (8, 16, None), (8, 32, 32), (6, 16, 12)])
def test_heads_keep_their_proportion_to_the_width(heads: int, head_dim: int | None, expected: int | None) -> None:
    width = f"model.head_dim={head_dim}" if head_dim else "model.head_dim=null"
    config = _load("configs/debug/gpt.yaml", f"model.heads={heads}", width)
    small = plan(config, [parse_layout("tp2", 1)])[0].config.model
    assert small.head_dim == expected
    assert (small.dim_per_head == small.hidden // small.heads) == (expected is None)


def test_recomputation_is_kept_but_for_the_reference() -> None:
    jobs = plan(_load("configs/debug/gpt.yaml", "parallel.recompute=full"), [parse_layout("pp2", 1)])
    assert {job.config.parallel.recompute for job in jobs} == {"full"}
    assert {job.reference.parallel.recompute for job in jobs} == {"none"}


def test_padding_is_computed_by_the_reference_alone() -> None:
    tokenizer = "data.tokenizer=unused"
    config = _load(
        "configs/finetune/classification.yaml",
        "model={layers: 2, hidden: 64, heads: 4, sequence_length: 64}",
        tokenizer,
    )
    jobs = plan(config, [parse_layout("tp2", 1)])
    assert {job.config.objective.pads_to_longest for job in jobs} == {True}
    assert {job.reference.objective.pads_to_longest for job in jobs} == {False}


def test_windows_shrink_with_the_sequence() -> None:
    pattern = "model.attention.pattern=[banded, {name: banded, window: 1024}]"  # 256, 1024 of 2048 positions
    config = load(RunConfig, Path("configs/gpt3/125m.yaml"), ["run.dir=unused", pattern])
    small = plan(config, [parse_layout("tp2", 1)])[0].config.model
    assert [small.sequence_length // kind.mean_keys(1 << 40, True) for kind in small.attention.kinds] == [8, 2]


def test_jobs_run_in_fp32_and_in_the_configs_precision() -> None:
    config = _load("configs/gpt3/125m.yaml")
    assert config.precision == "bf16"
    jobs = plan(config, [parse_layout("tp2", 1), parse_layout("tp2", 1), parse_layout("pp2", 1)])
    titles = [f"{job.title} {job.config.precision} of {job.config.model.layers}" for job in jobs]
    tensor = ["one rank fp32 of 2", "tp2 fp32 of 2", "one rank bf16 of 2", "tp2 bf16 of 2"]
    pipeline = ["one rank fp32 of 4", "pp2 fp32 of 4", "one rank bf16 of 4", "pp2 bf16 of 4"]
    assert titles == [*tensor, *pipeline], "one rank again for another number of layers"
    assert all(job.reference.batch.micro_sequences != job.config.batch.micro_sequences for job in jobs)
    assert all(job.reference.model == job.config.model for job in jobs)


def test_full_size_leaves_out_layouts_that_do_not_fit_and_refuses_them_when_named() -> None:
    config = _load("configs/debug/gpt.yaml", "model.vocabulary=2048")
    assert fits(config, parse_layout("tp4", 1), full=True)
    assert not fits(config, parse_layout("tp8", 1), full=True), "4 heads"
    assert fits(config, parse_layout("tp8", 1), full=False), "it is made with more"
    with pytest.raises(ConfigError, match=r"does not divide model\.heads"):
        plan(config, [parse_layout("tp8", 1)], full=True)
    assert plan(config, [parse_layout("tp4", 1)], full=True)[0].config.model == config.model


def test_a_stage_of_zero_that_there_is_not_is_named() -> None:
    config = _load("configs/debug/gpt.yaml", "model.vocabulary=2048")
    with pytest.raises(ConfigError, match=r"dp4\+zero4.*parallel.zero"):
        plan(config, [Layout(world=4, zero=4)])
    with pytest.raises(ConfigError, match=r"parallel\.zero=3 is not supported by megatron-core"):
        plan(config, [Layout(world=4, zero=3, zero_engine="megatron")])


def test_layers_that_are_one_leave_out_chunks() -> None:
    config = _load("configs/debug/albert.yaml", "model.vocabulary=2048")
    assert fits(config, parse_layout("tp2pp2", 1), full=False)
    assert not fits(config, parse_layout("pp2+vp2", 1), full=False)


def test_rows_of_a_model_with_memory_continue_each_other_in_all_steps() -> None:
    config = load(RunConfig, "transformer-xl/enwik8", ["run.dir=unused"])
    small = shrink(config, [plan_layout(config, 1)])
    assert small.batch.ramp is None
    assert 0 < small.model.memory_length <= small.model.sequence_length
