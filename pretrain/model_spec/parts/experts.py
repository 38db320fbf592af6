"""The parameters of layers of experts."""

from collections.abc import Iterator
from dataclasses import replace

from pretrain.config.model import Model
from pretrain.model_spec.feed_forward import feed_forward
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.linears import matrix, under
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.model_spec.slots import LayerPart, Specs


class ExpertSpecs(LayerPart):
    """Parameters of layers of experts."""

    def feed_forward(self, model: Model, number: int) -> Specs | None:
        """See `LayerPart`."""
        return _experts(model) if model.has_experts(number) else None


def _experts(model: Model) -> Iterator[ParameterSpec]:
    """A router, the matrices of all experts as one parameter each, and the experts that every token passes through."""
    assert model.experts is not None
    scheme, hidden, count = SCHEMES[model.init.name](model), model.hidden, model.experts.count
    yield matrix("router.weight", (count, hidden), (None, None), Normal((scheme.projection(hidden, count),)), "width")
    for spec in feed_forward(model, model.expert_ffn_dim):
        name, shape = f"experts.{spec.name}", (count, *spec.shape)
        axes = ("expert", *(None if axis is None else f"expert_{axis}" for axis in spec.axes))
        blocks = None if spec.blocks is None else replace(spec.blocks, parts=count)
        yield replace(spec, name=name, shape=shape, axes=axes, blocks=blocks)
    if model.experts.shared:
        yield from under("shared_experts.", feed_forward(model, model.experts.shared * model.expert_ffn_dim))
