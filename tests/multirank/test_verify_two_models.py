"""`pretrain verify` of runs of two models: ELECTRA, whose discriminators read the reference's samples, and a student of
a teacher. One run on every kind of layout in fp32 and bf16, by the bounds of one model; and faults in it are found."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.engine.megatron import engine as megatron_engine
from pretrain.models.inputs import MicroBatch
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives import replaced_tokens
from pretrain.objectives.base import ScoredLabels
from pretrain.objectives.terms import scales
from pretrain.random.gumbel import sample
from pretrain.verify.bounds import HALF, bounds_of
from pretrain.verify.jobs import ONE_RANK, Job
from pretrain.verify.run import Verification
from pretrain.verify.scoring import ScoringCheck
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.planted import Fault, check_found, check_sound, of_fault, table
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import tiny_config

LAYOUTS = ("tp2pp2+sp", "pp2+vp2", "cp2", "tp2+sp", "dp2", "dp2+zero2", "pp2dp2+zero3")


def _electra(precision: str) -> RunConfig:
    return tiny_config(
        model=FAMILIES["electra"]["model"],
        generator={"hidden": 32, "heads": 4, "ffn": 64},
        objective={"name": "replaced_tokens"},
        precision=precision,
    )


def _student(precision: str) -> RunConfig:
    student = family_config(
        "bert", model={"binary_head": False}, objective={"name": "masked", "next_sentence": False}, precision=precision
    )
    teacher = student.model.model_dump(mode="json") | {"layers": 8}
    weights = {"temperature": 2.0, "kl_weight": 5.0, "label_weight": 2.0, "cosine_weight": 1.0}
    distillation = {"teacher": "unused", "teacher_model": teacher} | weights
    return RunConfig.model_validate(student.model_dump(mode="json") | {"distillation": distillation})


def _student_of_layers(precision: str) -> RunConfig:
    tree = _student(precision).model_dump(mode="json")
    weights = {
        "kl_weight": 0.0,
        "label_weight": 0.0,
        "cosine_weight": 0.0,
        "hidden_weight": 1.0,
        "attention_weight": 1.0,
    }
    return RunConfig.model_validate(tree | {"distillation": tree["distillation"] | weights})


def _student_of_a_task(precision: str) -> RunConfig:
    tree = _student(precision).model_dump(mode="json") | {"objective": {"name": "classification", "labels": ["a", "b"]}}
    head = {"task_head": {"kind": "sequence", "outputs": 2}}
    teacher = tree["distillation"]["teacher_model"] | head
    weights = {
        "kl_weight": 1.0,
        "label_weight": 0.5,
        "cosine_weight": 0.0,
        "hidden_weight": 1.0,
        "attention_weight": 1.0,
    }
    return RunConfig.model_validate(
        tree | {"distillation": tree["distillation"] | weights | {"teacher_model": teacher}}
    )


CONFIGS: dict[str, Callable[[str], RunConfig]] = {
    "electra": _electra,
    "student": _student,
    "student of layers": _student_of_layers,
    "student of a task": _student_of_a_task,
}
OF_LAYERS = ("tp2", "tp2+sp", "dp2", "dp2+zero2", "dp2+zero3")


def _detector_weighted_by_ranks(patch: pytest.MonkeyPatch) -> None:
    """The discriminator's loss is multiplied by the number of ranks, but not where it is reported."""

    def scaled(*arguments: Any) -> dict[str, float]:
        factors = scales(*arguments)
        return factors | {"replaced": factors["replaced"] * dist.get_world_size()}

    patch.setattr(megatron_engine, "scales", scaled)


def _noise_of_first_rows(patch: pytest.MonkeyPatch) -> None:
    """Each micro-batch draws the noise of the same rows."""

    def drawn(logits: torch.Tensor, rows: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
        return sample(logits, torch.zeros_like(rows), *more, **named)

    patch.setattr(replaced_tokens, "sample", drawn)


def _samples_stay_on_the_last_stage(patch: pytest.MonkeyPatch) -> None:
    broadcast = Groups.broadcast_over_pipeline

    def kept(self: Groups, value: torch.Tensor) -> torch.Tensor:
        return value.clamp(min=0, max=1) if value.dtype == torch.long else broadcast(self, value)

    patch.setattr(Groups, "broadcast_over_pipeline", kept)


FAULTS: list[tuple[Fault, str, str]] = [
    (_detector_weighted_by_ranks, "dp2", "gradient"),
    (_noise_of_first_rows, "dp2", "flips"),
    (_samples_stay_on_the_last_stage, "pp2", "flips"),
]


@pytest.mark.slow
def test_faults_of_the_second_model_are_found(tmp_path: Path) -> None:
    rows = table(_electra("fp32"), tmp_path, ["tp2"], [(fault, layout) for fault, layout, _ in FAULTS])
    check_sound(rows)
    for fault, layout, quantity in FAULTS:
        check_found(of_fault(rows, fault, layout), 1, quantity)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CONFIGS)
def test_two_models_are_the_same_run_within_the_bounds_of_one(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]("bf16")
    assert bounds_of(config, None)["loss"] == HALF["loss"]
    rows = table(config, tmp_path, OF_LAYERS if config.distillation.compares_layers else LAYOUTS)
    check_sound(rows)
    assert {row.job.config.precision for row in rows} == {"fp32", "bf16"}
    for row in rows:
        assert row.verdict is not None
        assert (row.verdict.flips.of > 300) == (name == "electra")


def _scoring(config: RunConfig) -> Any:
    dist.destroy_process_group()
    checks: list[ScoringCheck] = []
    jobs = [Job(ONE_RANK, config, config)]
    store = dist.HashStore()  # type: ignore[attr-defined]
    Verification(store, 0, 1, 1).run(jobs, lambda row: None, checks.append)
    return checks[0]


def _skewed(patch: pytest.MonkeyPatch) -> None:
    """Scores of the detector are of other logits than training's."""
    score = replaced_tokens.ReplacedTokensLoss.score

    def skewed(self: replaced_tokens.ReplacedTokensLoss, outputs: ModelOutputs, batch: MicroBatch) -> ScoredLabels:
        assert outputs.answers is not None
        return score(self, outputs._replace(answers=outputs.answers * 1.01), batch)

    patch.setattr(replaced_tokens.ReplacedTokensLoss, "score", skewed)


def _with_fault(config: RunConfig, fault: Fault | None) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        if fault is not None:
            fault(patch)
        return _scoring(config)


def test_scores_of_both_models_are_those_of_their_logits_and_of_training() -> None:
    found, skewed = (run_ranks(1, partial(_with_fault, _electra("fp32")), fault)[0] for fault in (None, _skewed))
    assert found.same, found
    assert found.log_softmax > 0
    assert not skewed.same
    assert min(skewed.log_softmax, skewed.training_loss) > 1e-4
