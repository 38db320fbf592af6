"""What the modules that predict further tokens are given, each at its depth."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.config.experts import Experts
from pretrain.models import multi_token_prediction
from pretrain.models.inputs import MicroBatch
from pretrain.models.layers import LayerInputs
from pretrain.models.mtp_tokens import MtpTokens, mtp_rows
from pretrain.models.multi_token_prediction import MtpLayer, MultiTokenPrediction
from pretrain.models.route_terms import MicroBatchRoutes, RouteTally
from pretrain.models.stream import Stream

DOCUMENTS = np.array([[0, 0, 0, 0, 1, 1], [0, 1, 1, 1, -1, -1]])
GIVEN = [
    [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]],
    [[1, 1, 1, 0, 1, 0], [0, 1, 1, 0, 0, 0]],
    [[1, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]],
]
"""by depth and row: positions whose document has the token that they read"""


class _Module(nn.Module):
    """In the place of a module: remembers what it is given."""

    def forward(self, hidden_SBH: Tensor, embeddings_SBH: Tensor, inputs: LayerInputs) -> Tensor:
        self.hidden, self.embeddings, self.inputs = hidden_SBH, embeddings_SBH, inputs
        return hidden_SBH + 1


def _given(routes: MicroBatchRoutes | None) -> list[_Module]:
    modules = MultiTokenPrediction.__new__(MultiTokenPrediction)
    nn.Module.__init__(modules)
    modules.layers = nn.ModuleList(_Module() for _ in range(3))
    ids = np.zeros(DOCUMENTS.shape, np.int64)
    found = mtp_rows(Rows(ids, ids, (DOCUMENTS >= 0).astype(np.float32), documents=DOCUMENTS), 3)
    columns: Any = (found.tokens_RDS, found.given_RDS, found.labels_RDS, found.loss_mask_RDS)
    names = ("tokens_BDS", "given_BDS", "labels_BDS", "loss_mask_BDS")
    tokens = MtpTokens(**dict(zip(names, map(torch.from_numpy, columns), strict=True)))
    own: Any = {"decoder": object()}
    inputs = LayerInputs(Stream({"decoder": 6, "mtp": 18}), own, routes=routes)
    embeddings = torch.arange(3.0).repeat_interleave(6)[:, None, None].expand(18, 2, 4)
    none = torch.zeros(2, 6)
    batch = MicroBatch(tokens_BS=none, positions_BS=none, labels_BL=none, loss_mask_BL=none, mtp=tokens)
    stream = torch.cat((torch.full((6, 2, 4), 9.0), embeddings))
    states = modules(torch.zeros(6, 2, 4), stream, batch, inputs)
    assert [state.unique().tolist() for state in states] == [[1], [2], [3]]
    for depth, module in enumerate(modules.layers):
        assert isinstance(module, _Module)
        assert module.hidden.unique().tolist() == [depth], "what the one before it said"
        assert module.embeddings.unique().tolist() == [depth]
        assert (len(module.hidden), len(module.embeddings)) == (6, 6)
        assert module.inputs.own is own
        assert dict(module.inputs.stream.lengths) == {"decoder": 6}
    return [module for module in modules.layers if isinstance(module, _Module)]


def test_each_routes_the_positions_that_have_a_token_at_its_depth() -> None:
    """And which are no padding; all else that routes are used for is that of the stack."""
    tally = RouteTally(["mtp.layers.0"], Experts(count=4, top_k=1), torch.device("cpu"))
    real = torch.from_numpy(DOCUMENTS >= 0)
    real[0, 1] = False
    factors = {"router_z": 0.5}
    for module, given in zip(_given(MicroBatchRoutes(tally, factors, real)), GIVEN, strict=True):
        routes = module.inputs.routes
        assert routes is not None
        expected = np.array(given, np.bool_)
        expected[0, 1] = False
        assert routes.real_BS.tolist() == expected.tolist()
        assert (routes.tally, routes.factors) == (tally, factors)


def test_a_model_without_experts_routes_nothing() -> None:
    assert all(module.inputs.routes is None for module in _given(None))


@pytest.mark.parametrize(("recomputes", "trains"), [(True, True), (True, False), (False, True), (False, False)])
def test_only_a_training_pass_under_full_recomputation_runs_again(
    recomputes: bool, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, again = MtpLayer.__new__(MtpLayer), []
    nn.Module.__init__(layer)
    layer.recomputes, layer._compute = recomputes, lambda hidden, embeddings, inputs: hidden  # type: ignore[method-assign]
    checkpoint: Any = lambda compute, distributed, *states: again.append(states) or compute(*states)  # noqa: E731
    monkeypatch.setattr(multi_token_prediction.tensor_parallel, "checkpoint", checkpoint)
    x: Any = torch.ones(2, 1, 4)
    assert torch.equal(layer.train(trains)(x, x, None), x)
    assert bool(again) == (recomputes and trains)
