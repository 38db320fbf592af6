"""Faults of mixtures of experts."""

from dataclasses import replace
from typing import Any

import pytest
from megatron.core import parallel_state
from torch import Tensor

from pretrain.engine.base import Piece
from pretrain.engine.megatron import state
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.megatron.router_terms import RouterTerms
from pretrain.engine.zero.gradient_norm import scale
from pretrain.engine.zero.megatron import MegatronSharding
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.models import experts
from pretrain.models.route_terms import LayerRoutes, MicroBatchRoutes
from pretrain.models.routing import Router
from tests.museum.exhibit import Exhibit
from tests.museum.verifying import Verify


def gradient_below_experts_in_part(patch: pytest.MonkeyPatch) -> None:
    """What experts read, and the weights of routes, have the gradients of a rank's own features."""
    patch.setattr(experts, "copy_to_tensor_model_parallel_region", lambda x: x)


def router_not_summed(patch: pytest.MonkeyPatch) -> None:
    """Tensor ranks route a slice of the sequence each, and keep the gradients that they find."""
    init = Router.__init__

    def unmarked(self: Router, *arguments: Any) -> None:
        init(self, *arguments)
        self.weight.sequence_parallel = False  # type: ignore[attr-defined]

    patch.setattr(Router, "__init__", unmarked)


def balance_divided_by_ranks(patch: pytest.MonkeyPatch) -> None:
    """Terms are divided by the tensor and context ranks, in the backward pass alone."""
    of_layer = MicroBatchRoutes.layer_routes

    def divided(self: MicroBatchRoutes, *arguments: Any) -> LayerRoutes:
        ranks = parallel_state.get_tensor_and_context_parallel_world_size()
        routes = of_layer(self, *arguments)
        return replace(routes, factors={name: factor / ranks for name, factor in routes.factors.items()})

    patch.setattr(MicroBatchRoutes, "layer_routes", divided)


def rows_divided_by_the_micro_batch(patch: pytest.MonkeyPatch) -> None:
    """The balance within a row is divided by the rows of its micro-batch."""
    weigh = LayerRoutes._row_weights

    def divided(self: LayerRoutes, *arguments: Any) -> Tensor:
        return weigh(self, *arguments) / self.real_SB.shape[1]

    patch.setattr(LayerRoutes, "_row_weights", divided)


def terms_of_a_stage_by_its_layers(patch: pytest.MonkeyPatch) -> None:
    """Each stage takes the mean over its own layers."""
    counts = RouterTerms.counts
    patch.setattr(
        RouterTerms, "counts", lambda self, batch: [x * len(self._own) / self._layers for x in counts(self, batch)]
    )


def tokens_counted_again_when_recomputed(patch: pytest.MonkeyPatch) -> None:
    add = LayerRoutes.add
    patch.setattr(LayerRoutes, "add", lambda self, logits, chosen, counts: add(self, logits, chosen, True))


def biases_of_routers_lost(patch: pytest.MonkeyPatch) -> None:
    loaded = MegatronEngine.state_loaded

    def without(self: MegatronEngine, updates: int, *rest: Any) -> None:
        for name, part in self.state().items():
            for piece in part.pieces if name.endswith("router.bias") else ():
                piece.value.zero_()
        loaded(self, updates, *rest)

    patch.setattr(MegatronEngine, "state_loaded", without)


def experts_not_divided_by_their_ranks(patch: pytest.MonkeyPatch) -> None:
    """Gradients of experts are as many times too large as ranks share them."""
    reduce = MegatronSharding.reduce

    def times(self: MegatronSharding, token_count: int) -> None:
        reduce(self, token_count)
        for optimizer in self.optimizers[1:]:
            scale([main.grad for main in optimizer.get_parameters()], float(self._groups.expert_world))

    patch.setattr(MegatronSharding, "reduce", times)


def moments_of_experts_lost(patch: pytest.MonkeyPatch) -> None:
    loaded = MegatronEngine.state_loaded

    def without(self: MegatronEngine, updates: int, *rest: Any) -> None:
        for name, part in self.state().items() if self.layout.expert > 1 else ():
            for piece in part.pieces if ".mlp.experts." in name and not name.startswith("model/") else ():
                piece.value.zero_()
        loaded(self, updates, *rest)

    patch.setattr(MegatronEngine, "state_loaded", without)


def experts_alike_on_all_ranks(patch: pytest.MonkeyPatch) -> None:
    """Every expert rank begins with the experts of the first one."""
    fill = state.fill

    def as_the_first(spec: ParameterSpec, seed: int, piece: Piece) -> None:
        ranks = parallel_state.get_expert_model_parallel_world_size()
        if "expert" in spec.axes and ranks > 1:
            expert, *rest = piece.offset
            piece = Piece((expert % (spec.shape[0] // ranks), *rest), piece.value)
        fill(spec, seed, piece)

    patch.setattr(state, "fill", as_the_first)


EXHIBITS = [
    Exhibit(
        group="experts",
        title="Gradients below experts are those of one tensor rank's features",
        threads=("pytorch/torchtitan#4054", "pytorch/torchtitan#1878"),
        effect="under-reduced gradients of all that lies below experts, routers included; the loss looks normal",
        plant=gradient_below_experts_in_part,
        finder=Verify(layout="tp2", quantity="gradient", parameter=".", stages=(0,), family="shared_experts"),
    ),
    Exhibit(
        group="experts",
        title="Gradients of routers are not summed over tensor ranks",
        threads=("pytorch/torchtitan#2388",),
        effect="routers of tensor ranks differ after the first step",
        plant=router_not_summed,
        finder=Verify(
            layout="tp2+sp", quantity="gradient", parameter="router.weight", stages=(0,), family="shared_experts"
        ),
    ),
    Exhibit(
        group="experts",
        title="Balance and z losses are divided by tensor and context ranks",
        threads=("NVIDIA/Megatron-LM#5047", "NVIDIA/Megatron-LM#1652"),
        effect="losses of otherwise identical runs differ with the number of tensor ranks",
        plant=balance_divided_by_ranks,
        finder=Verify(
            layout="cp2", quantity="gradient", parameter="router.weight", stages=(0,), family="shared_experts"
        ),
    ),
    Exhibit(
        group="experts",
        title="The balance within a sequence is divided by the sequences of a micro-batch",
        threads=("NVIDIA/Megatron-LM#5798",),
        effect="the larger the micro-batch, the less experts are balanced",
        plant=rows_divided_by_the_micro_batch,
        finder=Verify(layout="dp2", quantity="loss", family="biased_experts"),
    ),
    Exhibit(
        group="experts",
        title="The load-balancing loss differs by pipeline size",
        threads=("databricks/megablocks#85",),
        effect="0.1005, 0.1007 and 0.1013 for 1, 2 and 4 stages",
        plant=terms_of_a_stage_by_its_layers,
        finder=Verify(layout="pp2", quantity="loss", family="shared_experts"),
    ),
    Exhibit(
        group="experts",
        title="Load balancing counts tokens twice under recomputation",
        threads=(
            "pytorch/torchtitan#4772",
            "pytorch/torchtitan#3000",
            "pytorch/torchtitan#2061",
            "pytorch/torchtitan#1593",
        ),
        effect="wrong balance",
        plant=tokens_counted_again_when_recomputed,
        finder=Verify(
            layout="dp2", quantity="loss", family="shared_experts", sections={"parallel": {"recompute": "full"}}
        ),
    ),
    Exhibit(
        group="experts",
        title="The biases of routers are lost on resuming",
        threads=("pytorch/torchtitan#1403",),
        effect="not measured",
        plant=biases_of_routers_lost,
        finder=Verify(
            layout="dp2", step=2, quantity="checkpoint", parameter="router.bias", stages=(0,), family="biased_experts"
        ),
    ),
    Exhibit(
        group="experts",
        title="Gradients of experts are not divided by the number of expert ranks",
        threads=("NVIDIA/Megatron-LM#5956", "NVIDIA/Megatron-LM#1628"),
        effect="a bad loss curve",
        plant=experts_not_divided_by_their_ranks,
        finder=Verify(layout="ep2", quantity="gradient", parameter="mlp.experts", stages=(0,), family="shared_experts"),
    ),
    Exhibit(
        group="experts",
        title="The loss jumps after resuming a mixture of experts",
        threads=("NVIDIA/Megatron-LM#761",),
        effect="a jump: states of the optimizer of experts are loaded wrongly",
        plant=moments_of_experts_lost,
        finder=Verify(
            layout="ep2", step=2, quantity="checkpoint", parameter="mlp.experts", stages=(0,), family="shared_experts"
        ),
    ),
    Exhibit(
        group="experts",
        title="Experts are identical on expert ranks under a distributed optimizer",
        threads=("databricks/megablocks#160",),
        effect="half of the model",
        plant=experts_alike_on_all_ranks,
        finder=Verify(
            layout="ep2",
            step=0,
            quantity="initial weights",
            parameter="mlp.experts",
            stages=(0,),
            family="shared_experts",
        ),
    ),
]
