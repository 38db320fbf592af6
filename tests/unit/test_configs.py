"""Every shipped run config: loads, is legal, has the published size, and the size that the model is built with."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pretrain.config.attention import Banded
from pretrain.config.health import Health
from pretrain.config.load import load
from pretrain.config.load import read as tree_of
from pretrain.config.model import Model
from pretrain.config.positions import LinearScaling, Llama3Scaling, RotaryPositions
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import Layout, plan_layout
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.model_spec.generator import generator_specs
from pretrain.model_spec.parameters import chunk_parameters, num_active_parameters, num_parameters
from pretrain.run_dir.paths import RECORD
from pretrain.run_length.ramp import tokens_of
from pretrain.run_length.segments import run_length
from tests.helpers import classics
from tests.helpers.breadth import only
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.shipped import NO_RUNS
from tests.helpers.tiny import tiny_config

CONFIGS = Path(__file__).parents[2] / "configs"
RUNS = sorted(
    path
    for path in CONFIGS.rglob("*.yaml")
    if path.relative_to(CONFIGS).parts[0] not in NO_RUNS and path.stem != "common"  # which others extend
)
TUNED = sorted(path for path in CONFIGS.glob("finetune/*.yaml") if path.stem != "common")
CONTINUED = sorted(path for path in CONFIGS.glob("continue/*.yaml") if path.stem != "common")
SIZES = [path for path in RUNS if path.parent.name != "debug"]


def name(path: Path) -> str:
    return str(path.relative_to(CONFIGS).with_suffix(""))


def read(size: str) -> RunConfig:
    return load(RunConfig, CONFIGS / f"{size}.yaml")


def test_all_published_sizes_are_shipped() -> None:
    gpt3 = {f"gpt3/{size}" for size in ("125m", "350m", "760m", "1.3b", "2.7b", "6.7b", "13b", "175b")}
    gpt2 = {f"gpt2/{size}" for size in ("124m", "355m", "774m", "1.5b")}
    others = {
        f"{family}/{size}" for family in ("bert", "roberta", "bart", "pegasus", "xlnet") for size in ("base", "large")
    }
    others |= {f"albert/{size}" for size in ("base", "large", "xlarge", "xxlarge")}
    others |= {"roformer/base", "xlm-r/base", "xlm-r/large", "xlm/tlm"}
    t5 = {f"t5/{size}" for size in ("small", "base", "large", "3b", "11b", "decoder-lm", "prefix-lm")}
    v11 = {f"t5-v1.1/{size}" for size in ("small", "base", "large", "xl", "xxl")}
    byt5 = {f"byt5/{size}" for size in ("small", "base", "large", "xl", "xxl")}
    transformer = {f"transformer/{size}" for size in ("base", "big")}
    llama = {f"llama/{size}" for size in GPT3_SIZES if size != "175b"}
    released = {f"llama1/{size}" for size in ("7b", "13b", "33b", "65b")} | {f"llama2/{n}b" for n in (7, 13, 70)}
    released |= {f"llama3/{size}" for size in ("8b", "70b", "3.2-1b", "3.2-3b")}
    released |= {"bloom/560m", "smollm2/135m", "mistral/7b", "gemma2/2b", "gemma3/270m", "gemma3/1b"}
    released |= {f"qwen2/{n}b" for n in (0.5, 1.5, 7)} | {f"qwen3/{n}b" for n in (0.6, 1.7, 4, 8)}
    released |= {"mixtral/8x7b", "mixtral/8x22b", "qwen3-moe/30b-a3b", "qwen3-moe/235b-a22b", "olmoe/1b-7b"}
    released |= {"dots1/142b-a14b", "deepseek-v2/lite", "deepseek-v3/671b"}
    alone = {*classics.names("CONFIGS"), "ctrl/1.6b", "transformer-xl/enwik8", "gpt/117m", "sparse-transformer/enwik8"}
    wanted = gpt3 | gpt2 | alone | others | t5 | byt5 | v11 | transformer | llama | released
    assert wanted <= {name(path) for path in RUNS}


@pytest.mark.parametrize("path", RUNS, ids=name)
def test_loads_and_is_legal(path: Path) -> None:
    config = load(RunConfig, path)
    if config.model.vocabulary is None:
        config = load(RunConfig, path, ["model.vocabulary=8192"])
    experts = config.parallel.expert  # ranks that share them are data ranks
    assert plan_layout(config, config.parallel.model_ranks * experts).data == experts


@pytest.mark.parametrize("path", CONTINUED, ids=name)
def test_a_recipe_of_continued_pretraining_trains_the_model_that_it_starts_from(path: Path, tmp_path: Path) -> None:
    start = read("llama3/3.2-1b")
    (tmp_path / RECORD).write_text(json.dumps({"config": start.model_dump(mode="json")}))
    config = load(RunConfig, path, [f"run.start_from={tmp_path}"])
    assert config.model == start.model.model_copy(update={"sequence_length": 2048}).trained_by(config.finetune)
    assert [source.called for source in config.data.sources] == ["domain", "general"]
    assert plan_layout(config, 8).data == 8


def test_a_key_of_a_section_leaves_the_others_to_the_model_that_a_run_starts_from(tmp_path: Path) -> None:
    start = read("mixtral/8x7b")
    (tmp_path / RECORD).write_text(json.dumps({"config": start.model_dump(mode="json")}))
    for recipe in ("finetune/instructions", "continue/anneal"):
        scaling = ["model.positions.scaling.name=linear", "model.positions.scaling.factor=4"]
        overrides = ["model.experts.balance_loss=0.02", *scaling, f"run.start_from={tmp_path}", "train.epochs=null"]
        found = load(RunConfig, recipe, [*overrides, "train.steps=10", "train.tokens=null"]).model
        assert found.experts == start.model.experts.model_copy(update={"balance_loss": 0.02})
        linear = LinearScaling(factor=4)
        assert found.positions == start.model.positions.model_copy(update={"scaling": linear})


@pytest.mark.parametrize("path", TUNED, ids=name)
def test_fine_tuning_trains_in_its_last_step(path: Path) -> None:
    schedule = tree_of(path)["schedule"]
    assert schedule["name"] == "constant" or schedule["final_fraction"] > 0


@pytest.mark.parametrize("path", [path for path in RUNS if path.parent.name == "gpt3"], ids=name)
def test_gpt3_runs_on_sixteen_data_ranks_from_its_first_small_batch(path: Path) -> None:
    config = load(RunConfig, path)
    assert plan_layout(config, 16 * config.parallel.model_ranks).data == 16


# Table 2.1 recomputed in units of 1e9: matrices, embeddings and positions, without biases and norms (under 0.1%).
GPT3_SIZES = {
    "125m": 0.125,
    "350m": 0.356,
    "760m": 0.760,
    "1.3b": 1.315,
    "2.7b": 2.650,
    "6.7b": 6.657,
    "13b": 12.851,
    "175b": 174.6,
}


@pytest.mark.parametrize("size", [size for size in GPT3_SIZES if size != "175b"])
def test_the_ladder_in_llama_s_shape_has_gpt3_s_sizes(size: str) -> None:
    gpt3, llama = read(f"gpt3/{size}"), read(f"llama/{size}")
    assert num_parameters(llama.model) == pytest.approx(num_parameters(gpt3.model), rel=0.03)
    assert (llama.batch, llama.optimizer, llama.schedule) == (gpt3.batch, gpt3.optimizer, gpt3.schedule)


@pytest.mark.parametrize(("size", "billions"), GPT3_SIZES.items())
def test_gpt3_has_the_published_number_of_parameters(size: str, billions: float) -> None:
    model = read(f"gpt3/{size}").model
    vectors = model.layers * (9 * model.hidden + 4 * model.hidden) + 2 * model.hidden
    matrices = (num_parameters(model, padded=False) - vectors) / 1e9
    digits = 1 if billions > 100 else 3
    assert round(matrices, digits) == billions


def _without_further_tokens(size: str) -> Model:
    """What DeepSeek calls the main model."""
    return read(size).model.model_copy(update={"mtp": None})


# Elements of the weights that the authors released.
@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("gpt/117m", 116_534_784),
        ("gpt2/124m", 124_439_808),
        ("gpt2/355m", 354_823_168),
        ("gpt2/774m", 774_030_080),
        ("gpt2/1.5b", 1_557_611_200),
        ("llama1/7b", 6_738_415_616),
        ("llama1/13b", 13_015_864_320),
        ("llama1/33b", 32_528_943_616),
        ("llama1/65b", 65_285_660_672),
        ("llama2/7b", 6_738_415_616),
        ("llama2/70b", 68_976_648_192),
        ("llama3/8b", 8_030_261_248),
        ("llama3/70b", 70_553_706_496),
        ("llama3/3.2-1b", 1_235_814_400),
        ("llama3/3.2-3b", 3_212_749_824),
        ("smollm2/135m", 134_515_008),
        ("gemma3/270m", 268_098_176),
        ("gemma3/1b", 999_885_952),
        ("bloom/560m", 559_214_592),
        ("ctrl/1.6b", 1_637_964_550),
        ("gemma2/2b", 2_614_341_888),
        ("qwen2/0.5b", 494_032_768),
        ("qwen2/1.5b", 1_543_714_304),
        ("qwen2/7b", 7_615_616_512),
        ("qwen3/0.6b", 596_049_920),
        ("qwen3/1.7b", 1_720_574_976),
        ("qwen3/4b", 4_022_468_096),
        ("qwen3/8b", 8_190_735_360),
        ("mistral/7b", 7_241_732_096),
        ("mixtral/8x7b", 46_702_792_704),
        ("mixtral/8x22b", 140_630_071_296),
        ("qwen3-moe/30b-a3b", 30_532_122_624),
        ("qwen3-moe/235b-a22b", 235_093_634_560),
        ("olmoe/1b-7b", 6_919_161_856),
        ("dots1/142b-a14b", 142_774_373_888),
        ("deepseek-v2/lite", 15_706_484_224),
        ("deepseek-v3/671b", 671_026_404_352),
    ],
)
def test_a_decoder_has_exactly_the_released_number_of_parameters(size: str, parameters: int) -> None:
    assert num_parameters(_without_further_tokens(size), padded=False) == parameters


# Counted on transformers' classes (docs/experts.md): all parameters but those of experts that a token is not sent to.
@pytest.mark.parametrize(
    ("size", "active"),
    [
        ("mixtral/8x7b", 12_879_925_248),
        ("mixtral/8x22b", 39_161_468_928),
        ("qwen3-moe/30b-a3b", 3_353_032_704),
        ("qwen3-moe/235b-a22b", 22_190_763_520),
        ("olmoe/1b-7b", 1_282_017_280),
        ("dots1/142b-a14b", 14_016_581_120),
        ("deepseek-v2/lite", 2_661_150_208),
        ("deepseek-v3/671b", 37_552_282_624),
    ],
)
def test_a_token_passes_through_exactly_so_many_parameters(size: str, active: int) -> None:
    assert num_active_parameters(_without_further_tokens(size)) == active


# What no count of parameters shows, as released. docs/families.md says where each was read.
@pytest.mark.parametrize(
    ("sizes", "eps", "base", "local_base", "window"),
    [
        (("llama1/7b", "llama1/13b", "llama1/33b"), 1e-6, 1e4, None, None),
        (("llama1/65b", "llama2/7b", "llama2/13b", "llama2/70b"), 1e-5, 1e4, None, None),
        (("llama3/8b", "llama3/70b"), 1e-5, 5e5, None, None),
        (("smollm2/135m",), 1e-5, 1e5, None, None),
        (("gemma2/2b",), 1e-6, 1e4, None, 4096),
        (("gemma3/270m", "gemma3/1b"), 1e-6, 1e6, 1e4, 512),
        (("qwen2/0.5b", "qwen2/1.5b", "qwen2/7b"), 1e-6, 1e6, None, None),
        (("qwen3/0.6b", "qwen3/1.7b", "qwen3/4b", "qwen3/8b"), 1e-6, 1e6, None, None),
        (("mistral/7b",), 1e-5, 1e4, None, 4096),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_decoder_has_the_released_epsilon_base_and_window(
    sizes: tuple[str, ...], eps: float, base: float, local_base: float | None, window: int | None
) -> None:
    for size in sizes:
        model = read(size).model
        positions = model.positions
        assert isinstance(positions, RotaryPositions)
        assert (model.norm_eps, positions.base, positions.local_base, positions.scaling) == (
            eps, base, local_base, None,
        ), size  # fmt: skip
        windows = {pattern.reach for pattern in model.attention.kinds if isinstance(pattern, Banded)}
        assert windows == ({window} if window else set()), size


@pytest.mark.parametrize("size", ["llama3/3.2-1b", "llama3/3.2-3b"])
def test_llama_3_2_has_the_released_positions(size: str) -> None:
    scaling = Llama3Scaling(factor=32, original_length=8192, low_freq_factor=1, high_freq_factor=4)
    assert read(size).model.positions == RotaryPositions(base=5e5, scaling=scaling)
    assert read(size).model.norm_eps == 1e-5


# Millions of parameters as the papers give them, and how far the recount may be off: some count without heads, or round
# generously (T5 large has 738 million by every count that we know of).
@pytest.mark.parametrize(
    ("size", "millions", "off"),
    [
        ("bert/base", 110, 0.01),
        ("distilbert/base", 67, 0.001),
        ("tinybert/4", 14.5, 0.01),
        ("tinybert/6", 67, 0.001),
        ("bert/large", 340, 0.02),
        ("roberta/base", 125, 0.01),
        ("roberta/large", 355, 0.01),
        ("t5/small", 60, 0.01),
        ("t5/base", 220, 0.02),
        ("t5/large", 770, 0.05),
        ("t5/3b", 2800, 0.02),
        ("t5/11b", 11_000, 0.03),
        ("bart/base", 140, 0.01),
        ("bart/large", 400, 0.02),
        ("pegasus/base", 223, 0.01),
        ("pegasus/large", 568, 0.01),
        ("byt5/small", 300, 0.005),
        ("byt5/base", 582, 0.001),
        ("byt5/large", 1230, 0.005),
        ("byt5/xl", 3740, 0.001),
        ("byt5/xxl", 12_900, 0.001),
        ("transformer/base", 65, 0.04),
        ("transformer/big", 213, 0.01),
    ],
)
def test_encoders_and_encoder_decoders_have_the_published_size(size: str, millions: float, off: float) -> None:
    assert num_parameters(read(size).model, padded=False) / 1e6 == pytest.approx(millions, rel=off)


# Elements of transformers' AlbertForPreTraining, heads included. The paper prints 12, 18, 60 and 235 million; its own
# shape of the last does not make that many.
@pytest.mark.parametrize(
    ("size", "parameters"),
    [("base", 11_813_810), ("large", 17_847_474), ("xlarge", 59_021_490), ("xxlarge", 223_158_450)],
)
def test_albert_counts_its_layers_once(size: str, parameters: int) -> None:
    config = read(f"albert/{size}")
    assert num_parameters(config.model, padded=False) == parameters
    assert config.optimizer.name == "lamb"


# Elements of transformers' ElectraForPreTraining and ElectraForMaskedLM, each with tables of its own.
@pytest.mark.parametrize(
    ("size", "parameters", "of_generator"),
    [
        ("small", 13_549_057, 4_620_026),
        ("base", 109_483_009, 33_740_602),
        ("large", 335_142_913, 51_295_290),
    ],
)
def test_electra_and_its_generator_have_the_size_of_transformers_own(
    size: str, parameters: int, of_generator: int
) -> None:
    config = read(f"electra/{size}")
    assert config.generator_model is not None
    assert num_parameters(config.model, padded=False) == parameters
    assert num_parameters(config.generator_model, padded=False) == of_generator
    shared = (config.model.padded_vocab_size + 512 + 2) * config.model.embedding_dim
    own = sum(spec.size for spec in generator_specs(config))
    assert own == num_parameters(config.generator_model) - shared


@pytest.mark.parametrize(("size", "parameters"), [("base", 116_750_336), ("large", 360_300_800)])
def test_xlnet_has_the_size_of_transformers_own(size: str, parameters: int) -> None:
    config = read(f"xlnet/{size}")
    assert num_parameters(config.model, padded=False) == parameters
    assert config.objective.text_tokens(config.sequence_length) == 512


def test_transformer_xl_has_the_published_size() -> None:
    """41M, of a vocabulary of 204."""
    assert num_parameters(read("transformer-xl/enwik8").model, padded=False) / 1e6 == pytest.approx(41, abs=0.5)


def test_transformer_xl_on_wikitext_103_has_the_published_size() -> None:
    """151M, with a bias of each word and three clusters."""
    model = read("transformer-xl/wikitext-103").model
    assert round(num_parameters(model, padded=False) / 1e6) == 151
    of_softmax = (model.vocab_size + 3) * (model.hidden + 1)
    assert (
        num_parameters(model, padded=False) - of_softmax
        == 16 * (5 * 410 * 410 + 2 * 410 * 2100 + 2100 + 410 + 4 * 410) + 2 * 410
    )


@pytest.mark.parametrize(("size", "millions"), [("base", 278.3), ("large", 560.1)])
def test_xlm_r_has_the_size_of_transformers_own(size: str, millions: float) -> None:
    """The paper has 270 and 550 million."""
    assert num_parameters(read(f"xlm-r/{size}").model, padded=False) / 1e6 == pytest.approx(millions, abs=0.05)


def test_a_roformer_is_a_bert_without_a_table_of_positions_and_a_pooled_head() -> None:
    bert, roformer = (num_parameters(read(f"{name}/base").model, padded=False) for name in ("bert", "roformer"))
    assert bert - roformer == 512 * 768 + (768 + 1) * (768 + 2)


def test_the_sparse_transformer_has_the_published_size_with_the_paper_s_embedding_of_positions() -> None:
    """95M, whose positions are the sum of two embeddings: of 96 blocks, and of 128 places in one."""
    model = read("sparse-transformer/enwik8").model
    blocks, places = model.sequence_length // 128, 128
    of_positions = (model.sequence_length - blocks - places) * model.hidden
    assert (num_parameters(model, padded=False) - of_positions) / 1e6 == pytest.approx(95, abs=0.5)
    assert model.attention.layer_pattern(0).mean_keys(model.sequence_length, True) == 64.5 + 32 * (blocks - 1) / 2


# Raffel et al. 2020, section 3.1.4: 512 positions with 15% in spans of 3 make targets of 114.
def test_t5_computes_its_target_length() -> None:
    assert read("t5/small").model.target_length == 114


# Xue et al. 2022, section 3.1: 1024 bytes with spans of 20.
@pytest.mark.parametrize("size", ["small", "base", "large", "xl", "xxl"])
def test_byt5_reads_1024_bytes_and_writes_189(size: str) -> None:
    config = read(f"byt5/{size}")
    assert (config.model.sequence_length, config.model.target_length) == (1024, 189)
    assert config.batch.sequences * 1024 == 2**20
    assert config.model.padded_vocab_size == 384
    assert config.model.stacks[0] == 3 * config.model.stacks[1], "the encoder is the heavy one"


# BERT's 90% of steps at 128 tokens and the rest at 512.
def test_bert_runs_through_two_lengths() -> None:
    config = read("bert/base")
    steps, tokens = run_length(config)
    assert steps == 1_000_000
    assert tokens == 256 * (900_000 * 128 + 100_000 * 512)
    assert tokens_of(config, 256 * 900_000 + 1) == 256 * 900_000 * 128 + 512


# Table 2.1: layers, d_model, heads, d_head, batch in tokens, learning rate. Two cells are ours: see 1.3b and 13b.
GPT3_TABLE = {
    "125m": (12, 768, 12, 64, 0.5e6, 6.0e-4),
    "350m": (24, 1024, 16, 64, 0.5e6, 3.0e-4),
    "760m": (24, 1536, 16, 96, 0.5e6, 2.5e-4),
    "1.3b": (24, 2048, 16, 128, 1e6, 2.0e-4),
    "2.7b": (32, 2560, 32, 80, 1e6, 1.6e-4),
    "6.7b": (32, 4096, 32, 128, 2e6, 1.2e-4),
    "13b": (40, 5120, 40, 128, 2e6, 1.0e-4),
    "175b": (96, 12288, 96, 128, 3.2e6, 0.6e-4),
}


@pytest.mark.parametrize(("size", "row"), GPT3_TABLE.items())
def test_gpt3_is_as_published(size: str, row: tuple[int, int, int, int, float, float]) -> None:
    config = read(f"gpt3/{size}")
    model, optimizer, schedule, ramp = config.model, config.optimizer, config.schedule, config.batch.ramp
    assert (model.layers, model.hidden, model.heads, model.dim_per_head) == row[:4]
    assert model.heads * model.dim_per_head == model.hidden
    assert model.ffn_dim == 4 * model.hidden
    assert (model.sequence_length, model.vocabulary, model.norm, model.tie_word_embeddings) == (
        2048,
        50257,
        "pre",
        True,
    )
    assert [pattern.name for pattern in model.attention.pattern] == ["dense", "banded"]
    # Printed to one digit after the point; "M" is 2^20 where that is exact.
    assert config.batch.sequences * 2048 == pytest.approx(row[4], rel=0.05)
    assert (optimizer.learning_rate, optimizer.beta1, optimizer.beta2, optimizer.eps) == (row[5], 0.9, 0.95, 1e-8)
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0.1, 1.0)
    assert (schedule.name, schedule.warmup_tokens, schedule.decay_tokens) == ("cosine", 375_000_000, 260_000_000_000)
    assert schedule.final_fraction == 0.1
    assert ramp is not None
    assert ramp.start_sequences * 2048 == 32 * 1024
    assert 4e9 <= ramp.tokens <= 12e9
    assert config.train.tokens == 300_000_000_000


def test_gpt3_175b_costs_the_published_compute() -> None:
    """Brown et al. 2020, table D.1: 3.14e23 operations (6 per parameter and token, without attention)."""
    config = read("gpt3/175b")
    _, tokens = run_length(config)
    assert training_flops_per_token(config.model) * tokens == pytest.approx(3.14e23, rel=0.02)


@pytest.fixture(scope="module")
def one_rank() -> Iterator[Layout]:
    """A process group of one, with megatron-core's groups made for it."""
    from megatron.core import parallel_state

    from pretrain.engine import device, rendezvous
    from pretrain.engine.groups import Groups

    device.install()
    rendezvous.init_process_group(Health())
    layout = plan_layout(load(RunConfig, CONFIGS / "gpt3/125m.yaml"), 1)
    Groups(layout, 60)
    yield layout
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


SMALL = {family: family_config(family) for family in FAMILIES} | {
    "gpt": tiny_config(model={"tie_word_embeddings": False}),
    "gpt, post-norm": tiny_config(model={"norm": "post"}),
    "gpt, layers that are one": tiny_config(model={"shared_layers": True}),
    "t5, layers that are one": family_config("t5", model={"shared_layers": True}),
    "gpt, grouped heads, rotary": tiny_config(model={"kv_heads": 2, "positions": "rotary"}),
}


@pytest.mark.parametrize(
    "case",
    [*SMALL, *only(list({path.parent: path for path in reversed(SIZES)}.values()), SIZES)],
    ids=lambda case: case if isinstance(case, str) else name(case),
)
def test_what_is_declared_is_what_is_built(case: str | Path, one_rank: Layout) -> None:
    """Names and shapes."""
    from pretrain.models.kernels import plain
    from pretrain.models.megatron_config import megatron_config
    from pretrain.models.placement import parameters
    from pretrain.models.registry import build_chunk

    alone = ["parallel.tensor=1", "parallel.sequence=false", "parallel.pipeline=1", "parallel.expert=1"]
    config = SMALL[case] if isinstance(case, str) else load(RunConfig, case, alone)
    megatron = megatron_config(config, plain(torch.device("cpu")))
    with torch.device("meta"):
        model = build_chunk(config.model, megatron, True, True, None)
    (held,) = chunk_parameters(config.model, one_rank)
    found = parameters(model, held, {"tensor": (0, 1)})
    assert {p.name: tuple(p.value.shape) for p in found} == {h.name: h.spec.shape for h in held}
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters(config.model)
