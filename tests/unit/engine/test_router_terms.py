"""Terms and counts of a step's routes on one stage: layer by layer, against the formulas. All else in a run that these
decide on is in the tests of ranks."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.megatron import router_terms
from pretrain.engine.megatron.router_terms import RoutedStep, RouterTerms
from pretrain.engine.megatron.step_part import StepPasses
from pretrain.models.inputs import MicroBatch
from pretrain.models.routing import Router
from tests.helpers.families import family_config

EXPERTS, RATE = 8, 0.001
LAYERS = ["decoder.layers.1", "decoder.layers.2", "decoder.layers.3"]
OWN = LAYERS[1:]
PASSES = StepPasses(factors={}, scale=1.0, first_row=0, report=cast("Any", None), forwarded=cast("Any", None))
LOADS = torch.tensor([[90, 1, 1, 1, 1, 1, 1, 0], [0, 2, 2, 2, 2, 2, 2, 20]])
"""of which no expert's sum over both layers lies where each layer's does, as seen from the means"""


def _config(model: dict[str, Any], **experts: float) -> RunConfig:
    config = family_config("biased_experts", model=model)
    assert config.model.experts is not None
    changed = config.model.model_copy(update={"experts": config.model.experts.model_copy(update=experts)})
    return config.model_copy(update={"model": changed})


def _terms(monkeypatch: pytest.MonkeyPatch, model: dict[str, Any] | None = None, **experts: float) -> RouterTerms:
    """Router terms of a stage that holds the last two of three layers, summed over two replicas with equal counts."""
    config = _config(model or {}, **experts)
    settings = config.model.experts
    assert settings is not None
    kernels = SimpleNamespace(device=torch.device("cpu"))
    of_router: Any = SimpleNamespace(
        recompute_granularity=None, hidden_size=4, sequence_parallel=False, kernels=kernels
    )
    monkeypatch.setattr(router_terms, "routers", lambda chunks: {name: Router(of_router, settings) for name in OWN})
    groups: Any = SimpleNamespace(
        context_world=1, context_rank=0, tensor_rank=0, replica_rank=0, sum_over_replicas=lambda values: 2 * values,
        sum_over_pipeline=lambda values: values,
    )  # fmt: skip
    return RouterTerms(config, groups, [], torch.device("cpu"))


def _step(terms: RouterTerms) -> RoutedStep:
    terms._tally.chosen_LE += LOADS
    terms.computed()
    return terms._step


def _applied_step(terms: RouterTerms) -> None:
    _step(terms)
    terms.updated(1, cast("Any", None), 1.0)


def test_each_layer_s_bias_moves_by_its_own_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = _terms(monkeypatch)
    step = _step(terms)
    assert step.chosen_LE.tolist() == [[0] * EXPERTS, *(2 * LOADS).tolist()]
    terms.updated(1, cast("Any", None), 1.0)
    for router, loads in zip(terms._routers.values(), LOADS.double().numpy(), strict=True):
        assert router.bias_E is not None
        assert router.bias_E.numpy() == pytest.approx(RATE * np.sign(loads.mean() - loads))


def test_a_step_balances_by_each_layer_s_choices_in_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly in the first, and in a layer in which nothing was chosen."""
    terms = _terms(monkeypatch, balance_loss=0.1)
    terms.attached([], PASSES)
    assert terms._tally.previous_LE.tolist() == [[1 / EXPERTS] * EXPERTS] * 2
    _applied_step(terms)
    terms.attached([], PASSES)
    expected = LOADS.double() / LOADS.double().sum(1, keepdim=True)
    assert torch.allclose(terms._tally.previous_LE.double(), expected, rtol=1e-6)
    assert not terms._tally.chosen_LE.any()
    terms._tally.chosen_LE[0] += LOADS[0]
    terms.computed()
    terms.updated(2, cast("Any", None), 1.0)
    terms.attached([], PASSES)
    assert torch.allclose(terms._tally.previous_LE[0].double(), expected[0], rtol=1e-6)
    assert terms._tally.previous_LE[1].tolist() == [1 / EXPERTS] * EXPERTS


def test_choices_are_saved_exactly_each_in_its_layer_s_place(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = _terms(monkeypatch)
    terms._tally.chosen_LE[1, 3] = many = 2**33 + 2**20 + 5  # with that of the other replica, twice as many
    _applied_step(terms)
    part = terms.state()["router/chosen"]
    assert (part.shape, part.saves) == ((3, EXPERTS, 2), True)
    assert [piece.offset for piece in part.pieces] == [(1, 0, 0), (2, 0, 0)]
    saved = torch.cat([piece.value for piece in part.pieces]).long()
    expected = 2 * LOADS
    expected[1, 3] += 2 * many
    assert torch.equal(saved[..., 0] * 2**20 + saved[..., 1], expected)
    assert int(saved[..., 1].max()) < 2**20
    terms.attached([], PASSES)
    shares = expected.double() / expected.double().sum(1, keepdim=True)
    assert torch.allclose(terms._tally.previous_LE.double(), shares, rtol=1e-6, atol=0), "which the next step reads"


def test_figures_are_means_over_layers() -> None:
    """The largest load as a multiple of the mean, and the entropy as a part of the greatest; not those of all layers'
    choices together. A layer without any has nothing of either."""
    chosen = torch.cat([LOADS, torch.zeros_like(LOADS[:1])])
    shares = [np.array(loads) / sum(loads) for loads in LOADS.tolist()]
    load = sum(EXPERTS * share.max() for share in shares) / 3
    entropy = sum(-sum(p * np.log(p) for p in share if p) / np.log(EXPERTS) for share in shares) / 3
    found = RoutedStep(torch.tensor([7.0, 9.0], dtype=torch.float64), chosen).values
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([load, entropy, 7.0, 9.0])


def test_the_terms_that_a_loss_has_are_summed_scaled_and_read_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = _terms(monkeypatch, z_loss=0.01, sequence_loss=0.3)
    assert terms.weights == {"router_z": 0.01, "router_sequence": 0.3}
    ids = torch.zeros(1, 4, dtype=torch.long)
    batch = MicroBatch(
        tokens_BS=ids, positions_BS=ids, labels_BL=ids, loss_mask_BL=ids.float(),
        real_BS=ids == 0,
    )  # fmt: skip
    (routed,) = terms.attached([batch], replace(PASSES, factors={"router_sequence": 0.5}, scale=8.0))
    assert routed.routes is not None
    assert routed.routes.factors == {"router_z": 8.0, "router_sequence": 4.0}
    assert routed.routes.real_BS is batch.real_BS
    assert routed.routes.tally is terms._tally
    terms._tally.sums += torch.tensor([1.0, 20.0, 300.0])
    step = _step(terms)
    assert step.sums.tolist() == [2, 600]
    terms._every = 4
    found = terms.read(torch.cat(list(terms.values(4))).tolist(), [5.0, 7.0])
    assert list(found.figures) == ["expert_load", "expert_entropy"]
    assert found.terms == {"router_z": (2.0, 5), "router_sequence": (600.0, 7)}
    assert found.tokens_per_expert == dict(zip(LAYERS, step.chosen_LE.tolist(), strict=True))
    (values,) = terms.values(5)
    assert terms.read(values.tolist(), [5.0, 7.0]).tokens_per_expert == {}


def test_terms_count_what_each_layer_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions, or rows that have one: in three layers those that are no padding, in that of each further depth those
    whose document has the token that they read."""
    documents = np.array([[0, 0, 0, 1], [0, -1, -1, -1], [-1, -1, -1, -1]])
    ids = np.zeros_like(documents)
    rows = Rows(ids, ids, (documents >= 0).astype(np.float32), documents=documents)
    three = {"z_loss": 0.1, "balance_loss": 0.1, "sequence_loss": 0.1}
    assert _terms(monkeypatch, **three).counts(rows) == [3 * 5, 3 * 5, 3 * 2]
    mtp = {"mtp": {"num_layers": 2, "loss_scaling_factor": 0.3}}
    assert _terms(monkeypatch, mtp, **three).counts(rows) == [3 * 5 + 5 + 2] * 2 + [3 * 2 + 2 + 1]


def test_the_rate_is_that_of_the_settings_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = _terms(monkeypatch)
    terms.use_settings(_config({}, bias_rate=0.5))
    _applied_step(terms)
    bias_E = next(iter(terms._routers.values())).bias_E
    assert bias_E is not None
    assert bias_E.abs().tolist() == [0.5] * EXPERTS
