"""Rehearsals of layers of experts: what lives, is computed and sent is planned on each kind of layout, and what makes
the host wait is named."""

from collections import Counter

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.plan.device import Device, find_device
from pretrain.rehearse.rank_rehearsal import STATE
from pretrain.rehearse.run import Rehearsal, rehearse
from tests.helpers.breadth import slow

BF16 = ("precision=bf16", "model.vocabulary=2000", "model.sequence_length=1024", "batch.sequences=16")
MANY = "model.experts={count: 64, top_k: 4, ffn: 512, dense_layers: 1}"
UNSPLIT = ("parallel.tensor=2", "parallel.expert_tensor=1")
MUON = "optimizer={name: muon, learning_rate: 1e-3}"
H100, A100 = find_device("h100"), find_device("a100-80")
LAYERS = 3
"""layers of experts of debug/experts"""


def _rehearsed(*overrides: str, gpus: int = 4, device: Device = H100) -> Rehearsal:
    found = rehearse(
        load(RunConfig, "debug/experts", ["run.dir=unused", *BF16, *overrides]),
        gpus,
        ranks=("last",),
        device=device,
        per_node=gpus,
    )
    assert found.problems == []
    return found


def _waits(found: Rehearsal) -> Counter[str]:
    (rank,) = found.ranks
    waits: Counter[str] = Counter()
    for cause, count in rank.waits.items():
        if "/models/" in cause:
            waits[cause.rpartition(":")[0]] += count
    return waits


@pytest.mark.parametrize(
    "overrides",
    [
        slow(((MANY, "model.sequence_length=128", "parallel.recompute=full"),)),
        slow((("parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=2", "parallel.recompute=full"),)),
        (MANY, "parallel.expert=4"),
        slow(((MANY, "parallel.expert=2", "parallel.tensor=2", "parallel.sequence=true", "parallel.recompute=full"),)),
        slow((("parallel.expert=2", "parallel.zero=2", "parallel.zero_engine=deepspeed"),)),
        slow(((MANY, "model.sequence_length=128", "parallel.recompute=full", "precision=fp8"),)),
        slow(((MANY, "parallel.expert=4", "precision=fp8"),)),
        slow(((MANY, "parallel.expert=4", *UNSPLIT, "parallel.sequence=true"),)),
        slow(((MANY, "parallel.expert=2", *UNSPLIT, "parallel.sequence=true", "parallel.recompute=full"),)),
        slow(((MANY, "parallel.expert=4", *UNSPLIT),)),
        slow(((MANY, *UNSPLIT, "parallel.sequence=true", "parallel.pipeline=2", "parallel.zero=0"),)),
        slow(((MANY, "parallel.expert=2", *UNSPLIT, "parallel.zero=2", "parallel.zero_engine=deepspeed"),)),
    ],
    ids=[
        "many experts",
        "sequence parallelism and recomputation",
        *("shared", "shared by slices", "shared, DeepSpeed"),
        *("many experts, fp8", "shared, fp8"),
        *("unsplit", "unsplit, recomputed", "unsplit, without slices", "unsplit, not shared", "unsplit, DeepSpeed"),
    ],
)
def test_bytes_operations_and_exchanges_are_planned(overrides: tuple[str, ...]) -> None:
    """Twice as much would live where the gradient of all experts' matrices is, if its placeholder were beside it."""
    found = _rehearsed(*overrides)
    (rank,), (planned,) = found.ranks, found.planned
    assert planned.parameters == rank.parameters
    kept = [category for category in STATE if category in rank.state_bytes]  # DeepSpeed makes gradients in each step
    state = sum(rank.state_bytes[category] for category in kept)
    beside_state = sum(size for part, size in planned.held.items() if part not in kept)
    assert beside_state == pytest.approx(rank.peak_bytes - state, rel=0.1)
    assert planned.flops == pytest.approx(sum(rank.flops.values()), rel=0.001)
    sent = {group: size for group, size in planned.sent_bytes.items() if size}
    assert sent == pytest.approx({group: rank.sent_bytes[group] for group in sent}, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "overrides", "tolerance"),
    [
        (2, ("parallel.expert=2", "parallel.zero=0"), 1e-6),
        slow((4, ("parallel.expert=4",), 0.05)),
        slow((4, ("parallel.expert=2", "parallel.zero=0"), 1e-6)),
        slow((4, ("parallel.expert=2", "parallel.tensor=2"), 0.05)),
        slow((4, ("parallel.expert=2", *UNSPLIT, "parallel.sequence=true"), 0.05)),
        slow((4, ("parallel.expert=2", *UNSPLIT, "parallel.zero=0"), 1e-6)),
        slow((4, ("parallel.expert=2", "parallel.zero=2", "parallel.zero_engine=deepspeed"), 0.05)),
    ],
    ids=["two", "four", "without ZeRO", "tensor", "unsplit", "unsplit, without ZeRO", "DeepSpeed"],
)
def test_matrices_of_experts_stay_on_the_ranks_that_hold_them(
    gpus: int, overrides: tuple[str, ...], tolerance: float
) -> None:
    """Under Muon, which gives each matrix one owner: where ZeRO cuts, owners have more or less of theirs."""
    found = rehearse(
        load(RunConfig, "debug/experts", ["run.dir=unused", *BF16, MUON, *overrides]),
        gpus,
        ranks=range(gpus),
        device=H100,
        per_node=4,
    )
    assert found.problems == []
    assert sum(one.flops for one in found.planned) == pytest.approx(
        sum(sum(rank.flops.values()) for rank in found.ranks), rel=1e-6
    )
    sent, planned = (sum(one.sent_bytes["stage"] for one in ranks) for ranks in (found.ranks, found.planned))
    assert planned == pytest.approx(sent, rel=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("learns", ["mixture", "dense"])
def test_a_teacher_whose_experts_are_shared_is_planned(learns: str) -> None:
    dense = [] if learns == "mixture" else ["model.experts=null"]
    config, teacher = (
        load(RunConfig, "debug/experts", ["run.dir=unused", *BF16, "parallel.expert=2", *more]) for more in (dense, [])
    )
    distillation = {"teacher": "unused", "teacher_model": teacher.model.model_dump(mode="json")}
    config = RunConfig.model_validate(config.model_dump(mode="json") | {"distillation": distillation})
    found = rehearse(config, 4, ranks=("last",), device=H100, per_node=4)
    assert found.problems == []
    (rank,), (planned,) = found.ranks, found.planned
    assert planned.flops == pytest.approx(sum(rank.flops.values()), rel=0.001)
    assert planned.peak_bytes == pytest.approx(rank.peak_bytes, rel=0.03)
    for group in ("expert", "data"):
        assert planned.sent_bytes[group] == pytest.approx(rank.sent_bytes[group], rel=0.01)


@pytest.mark.slow
def test_ranks_that_share_experts_agree_on_their_exchanges() -> None:
    """Also where rows do not divide evenly, so that ranks receive other numbers of them."""
    odd, batch = (
        "model.experts={count: 6, top_k: 1, ffn: 512, dense_layers: 1}",
        ("batch.sequences=12", "batch.micro_sequences=1"),
    )
    found = rehearse(
        load(RunConfig, "debug/experts", ["run.dir=unused", *BF16, odd, *batch, "parallel.expert=3"]),
        6,
        ranks=("all-kinds",),
        device=H100,
        per_node=8,
    )
    assert found.problems == []
    assert {rank.rank for rank in found.ranks} == {0, 1, 3, 5}
    assert found.agreement.groups >= 3


@pytest.mark.slow
def test_layers_that_are_not_recomputed_keep_their_routes_until_the_next_step() -> None:
    """The first of three layers with experts is below everything that is trained."""
    found = _rehearsed("finetune.train=top", "finetune.layers=2", "parallel.recompute=full")
    assert [rank.left_bytes for rank in found.ranks] == [0]


@pytest.mark.slow
def test_the_host_waits_where_no_kernel_multiplies_all_experts() -> None:
    """Twice in the forward pass of a layer, and four times in its backward pass; in fp8, it remembers the first."""
    assert _waits(_rehearsed()) == {}
    assert _waits(_rehearsed("precision=fp16")) == {"tolist at pretrain/models/grouped.py": 6 * LAYERS}
    assert _waits(_rehearsed("precision=fp8")) == {"tolist at pretrain/models/grouped_fp8.py": 2 * LAYERS}
    assert _waits(_rehearsed(device=A100)) == {"_grouped_mm at pretrain/models/grouped.py": 6 * LAYERS}
