"""`pretrain verify` of mixtures of experts: layouts use the reference's routes, and their own are judged apart."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.config.run_config import RunConfig
from pretrain.engine.megatron import built_model
from pretrain.engine.optimizer import muon
from pretrain.engine.optimizer.block_exchange import Block
from pretrain.engine.optimizer.totals import ReplicaGroups
from pretrain.engine.zero.megatron import MegatronSharding
from pretrain.models import expert_choice, routing
from pretrain.models.expert_exchange import ExpertExchange
from pretrain.models.placement import Parameter
from pretrain.models.routing import Router
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.planted import Fault, check_found, check_sound, of_fault, table
from tests.helpers.tiny import tiny_config

LAYOUTS = ("tp2+sp", "cp2", "pp2", "dp2+zero3", "tp2pp2+sp", "ep2", "tp2ep2+sp", "cp2ep2", "ep2pp2", "tp2ep4etp1+sp")


def _biased(precision: str = "fp32", **experts: Any) -> RunConfig:
    config = family_config("biased_experts", precision=precision)
    tree = config.model_dump(mode="json")
    tree["model"]["experts"] |= experts
    return RunConfig.model_validate(tree)


def _pairs_of_equals() -> None:
    """Experts score alike, two by two, so that many tokens choose between equals."""
    made = routing.preferences

    def alike(*arguments: Any) -> Tensor:
        return made(*arguments)[..., 0::2].repeat_interleave(2, dim=-1)

    routing.preferences = alike


def _last_of_equals(patch: pytest.MonkeyPatch) -> None:
    """The last ones of equal experts are chosen."""

    def choose(values: Tensor, top_k: int) -> Tensor:
        ranked = torch.sort(values.flip(-1), dim=-1, descending=True, stable=True).indices[:, :top_k]
        return (values.shape[-1] - 1 - ranked).sort(dim=-1).values

    patch.setattr(expert_choice, "choose", choose)


def _bias_of_another_rank(patch: pytest.MonkeyPatch) -> None:
    """The second rank adds a little more to the score of one expert."""
    made = routing.preferences

    def moved(*arguments: Any) -> Tensor:
        found = made(*arguments).clone()
        found[..., 3] += 1e-3 * dist.get_rank()
        return found

    patch.setattr(routing, "preferences", moved)


def _bias_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    """The second rank's biases stay where they are."""
    move = Router.move_bias
    patch.setattr(Router, "move_bias", lambda self, *step: None if dist.get_rank() else move(self, *step))


def _groups_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The second rank chooses among all experts."""
    select = routing.select

    def chosen(preferences: Tensor, settings: Any) -> Tensor:
        return expert_choice.choose(preferences, settings.top_k) if dist.get_rank() else select(preferences, settings)

    patch.setattr(routing, "select", chosen)


def _weights_of_larger_logits(patch: pytest.MonkeyPatch) -> None:
    """The experts of a token are weighed a little otherwise."""
    weigh = routing.weights
    patch.setattr(routing, "weights", lambda logits, *others: weigh(logits * 1.001, *others))


def _experts_summed_over_all_data_ranks(patch: pytest.MonkeyPatch) -> None:
    """Gradients of different experts are added up."""
    mark = built_model.mark_split
    patch.setattr(built_model, "mark_split", lambda placed, ranks: mark(placed))


def _experts_counted_twice_in_the_norm(patch: pytest.MonkeyPatch) -> None:
    square = MegatronSharding._square
    patch.setattr(
        MegatronSharding,
        "_square",
        lambda self, optimizer: square(self, optimizer) * (2 if optimizer is self.optimizers[-1] else 1),
    )


def _rows_that_change_places(patch: pytest.MonkeyPatch) -> None:
    """The first two rows that experts return to a rank are swapped."""
    run = ExpertExchange.run

    def swapped(self: ExpertExchange, rows: Tensor, to_owners: bool) -> Tensor:
        found = run(self, rows, to_owners)
        if not to_owners:
            found[[0, 1]] = found[[1, 0]]
        return found

    patch.setattr(ExpertExchange, "run", swapped)


def _experts_of_a_rank_as_one_matrix(patch: pytest.MonkeyPatch) -> None:
    found = muon.find_blocks

    def joined(parameters: Sequence[Parameter], *others: Any) -> list[Block]:
        wrong = [
            replace(p, spec=replace(p.spec, blocks=replace(p.spec.blocks, parts=2))) if p.splits_experts else p
            for p in parameters
        ]
        return found(wrong, *others)

    patch.setattr(muon, "find_blocks", joined)


def _sums_over_the_experts_of_one_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicaGroups, "sum_over_shards", lambda self, values, of: self.sum(values, self._others))


EQUALS: list[tuple[Fault, str, str]] = [(_last_of_equals, "dp2", "routes")]
FAULTS: list[tuple[Fault, str, str]] = [
    (_bias_of_another_rank, "dp2", "router scores"),
    (_bias_of_the_step_before, "tp2", "router biases"),
    (_groups_forgotten, "cp2", "routes"),
    (_weights_of_larger_logits, "dp2", "gradient"),
]
SHARED: list[tuple[Fault, str, str]] = [
    (_experts_summed_over_all_data_ranks, "ep2+zero0", "gradient"),
    (_experts_counted_twice_in_the_norm, "ep2+zero0", "gradient norm"),
    (_rows_that_change_places, "ep2", "gradient"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "prepare", "experts"),
    [
        (EQUALS, _pairs_of_equals, {"groups": 1, "top_groups": 1, "top_k": 3}),
        (FAULTS, None, {}),
        (SHARED, None, {}),
    ],
    ids=["equals", "others", "expert ranks"],
)
def test_faults_of_routers_are_found(faults: Any, prepare: Any, experts: dict[str, Any], tmp_path: Path) -> None:
    planted = [(fault, layout) for fault, layout, _ in faults]
    rows = table(_biased(**experts), tmp_path, [layout for _, layout, _ in faults], planted, prepare=prepare)
    check_sound(rows)
    for fault, layout, quantity in faults:
        check_found(of_fault(rows, fault, layout), 1, quantity)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("optimizer", "fault"),
    [("muon", _experts_of_a_rank_as_one_matrix), ("adafactor", _sums_over_the_experts_of_one_rank)],
)
def test_update_rules_on_ranks_that_share_experts_are_verified(optimizer: str, fault: Fault, tmp_path: Path) -> None:
    experts = FAMILIES["biased_experts"]["model"]
    config = tiny_config(model=experts, optimizer={"name": optimizer, "learning_rate": 1e-3})
    layouts = ["ep2+zero0", "ep2", "tp2ep2+sp", "ep2pp2", "ep2+zero2", "tp2ep4etp1+sp", "tp2ep2etp1+zero0"]
    rows = table(config, tmp_path, layouts, [(fault, "ep2+zero0")])
    check_sound(rows)
    check_found(of_fault(rows, fault, "ep2+zero0"), 1, "update")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("family", "precision"),
    [("biased_experts", "bf16"), ("shared_experts", "bf16"), ("olmoe", "bf16"), ("biased_experts", "fp8")],
)
def test_layouts_are_the_same_run_though_tokens_flip(family: str, precision: str, tmp_path: Path) -> None:
    rows = table(family_config(family, precision=precision), tmp_path, LAYOUTS)
    check_sound(rows)
    for row in rows:
        assert row.verdict is not None
        flips, computed_in = row.verdict.route_flips, row.job.config.precision
        assert flips.tokens > 3000
        assert (flips.flipped > 10) == (computed_in != "fp32")
        of_dense_models = {"fp32": 1e-5, "bf16": 0.05, "fp8": 0.4}[computed_in]
        assert row.verdict.largest["gradient"] < of_dense_models
