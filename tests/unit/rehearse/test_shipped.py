"""Every config that comes with pretrain makes its step on GPUs, in a rehearsal: nothing lies on the wrong device, the
host waits for the results of the step alone, every operator has a CUDA kernel, and memory, operations and exchanges are
those that the planner expects of models that it plans."""

from pathlib import Path

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.plan.device import find_device
from pretrain.plan.planner import with_vocabulary
from pretrain.rehearse.planned import PlannedRank
from pretrain.rehearse.rank_rehearsal import STATE, RankRehearsal
from pretrain.rehearse.run import rehearse
from tests.helpers import classics
from tests.helpers.breadth import only
from tests.helpers.shipped import NO_RUNS

CONFIGS = Path(__file__).parents[3] / "configs"
HARDWARE = find_device("h200")
DEBUG_GPUS = 8
# Devices on which the authors trained, from the papers that the configs name; where a paper doesn't say, GPUS.
CLUSTERS = {
    "albert": 512, "bert/base": 16, "bert/large": 64, "bloom": 384, "ctrl": 256,
    "deberta/base": 64, "deberta/large": 96, "deberta-v2/xxlarge": 256, "gemma2/2b": 512, "gemma2/9b": 4096,
    "deepseek-v3": 2048, "gemma2/27b": 6144, "gpt": 8, "llama1": 2048, "llama2": 2048, "olmoe": 256, "roberta": 1024,
    "smollm2": 256, "transformer": 8,
    "sparse-transformer": 8, "transformer-xl": 2, "xlm": 64, "xlm-r": 500,
}  # fmt: skip
GPUS = 512
SETTINGS = dict.fromkeys(("debug/experts", "debug/experts-biased", "debug/latent", "debug/mtp"), ("precision=bf16",))
"""On GPUs, products of experts in fp32 are made one by one, and the host waits for the device to know their rows."""
WAITS = ("tolist at pretrain/engine/megatron/engine.py", "tolist at pretrain/engine/optimizer/totals.py")
"""of the step's results, and of sums for all factors of Adafactor or norms of LAMB"""
WAIT_FOR_ROWS = "tolist at pretrain/models/expert_exchange.py"
"""of how many rows go to which rank, in each layer whose experts ranks share"""
_MOST_MEMORY_OFF, _MOST_OPERATIONS_OFF, _MOST_SENT_OFF = 0.03, 0.02, 0.01


def _names(folder: str) -> list[str]:
    paths = CONFIGS.glob(f"{folder}/*.yaml")
    names = (f"{path.parent.name}/{path.stem}" for path in paths if path.stem != "common")
    return sorted(names)


DEBUG = _names("debug")
QUICK = ["debug/bert", *classics.names("REHEARSED"), "debug/experts", "debug/gpt", "debug/t5"]
PUBLISHED = [name for name in _names("*") if name.partition("/")[0] not in ("debug", *NO_RUNS)]


def _with_teacher(config: RunConfig) -> RunConfig:
    """The config with a teacher of twice as many layers, where its own is not at hand."""
    if config.distillation.teacher is None:
        return config
    teacher = config.model.model_dump(mode="json") | {"layers": 2 * config.model.layers}
    known = {"teacher_model": teacher, "match_layers": None}
    with_teacher = config.model_copy(update={"distillation": config.distillation.model_copy(update=known)})
    return with_teacher.model_copy(update={"model": with_teacher.projecting_model})


def _most_gpus(config: RunConfig, most: int) -> int:
    """The largest number of GPUs, up to `most`, over which the config's batch divides."""
    for gpus in range(most, 0, -1):
        try:
            plan_layout(config, gpus)
        except ConfigError:
            continue
        return gpus
    raise AssertionError(f"no layout on up to {most} GPUs")


def assert_rehearses(name: str, most_gpus: int, ranks: tuple[str, ...], *settings: str) -> None:
    config = _with_teacher(
        with_vocabulary(load(RunConfig, name, ["run.dir=unused", *SETTINGS.get(name, ()), *settings]))
    )
    gpus = _most_gpus(config, most_gpus)
    if plan_layout(config, gpus).pipeline == 1:
        ranks = ("last",)  # others differ in what they read alone
    found = rehearse(config, gpus, ranks=ranks, device=HARDWARE, per_node=min(8, gpus))
    assert found.problems == []
    for rank, planned in found.with_plans:
        assert rank.without_kernel == {}
        assert rank.left_bytes == 0
        once = {cause: count for cause, count in rank.waits.items() if not cause.startswith(WAIT_FOR_ROWS)}
        assert all(cause.startswith(WAITS) and count == 1 for cause, count in once.items())
        assert (planned is not None) == config.model.capabilities.planned
        if planned is not None:
            assert_planned(name, rank, planned)


def assert_planned(name: str, rank: RankRehearsal, planned: PlannedRank) -> None:
    assert rank.parameters == planned.parameters
    for category in STATE:
        # Buffers are padded, so that ranks have equal shares. Adafactor's sums of rows and columns are not planned.
        most_off = max(8192, 0.02 * planned.held["weights"])
        assert rank.state_bytes[category] == pytest.approx(planned.held[category], rel=0.02, abs=most_off)
    assert planned.peak_bytes == pytest.approx(rank.peak_bytes, rel=_MOST_MEMORY_OFF)
    operations = sum(rank.flops.values())
    assert planned.flops == pytest.approx(operations, rel=_MOST_OPERATIONS_OFF)
    sent = dict(rank.sent_bytes)
    expected = {group: size for group, size in planned.sent_bytes.items() if size}
    if "albert" in name or "deberta" in name:  # stages sum gradients of what all hold in the group of the pipeline
        for bytes_by_group in (sent, expected):
            bytes_by_group["pipeline"] = bytes_by_group.get("pipeline", 0) + bytes_by_group.pop("embedding", 0)
    for group, size in expected.items():
        assert sent.get(group, 0.0) == pytest.approx(size, rel=_MOST_SENT_OFF), group


@pytest.mark.parametrize("name", only(QUICK, DEBUG))
def test_debug_configs_of_each_family_on_eight_gpus(name: str) -> None:
    assert_rehearses(name, DEBUG_GPUS, ("first", "last"))


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_at_the_size_of_their_cluster(name: str) -> None:
    gpus = CLUSTERS.get(name, CLUSTERS.get(name.partition("/")[0], GPUS))
    assert_rehearses(name, gpus, ("first", "middle", "last"))
