"""The parameters of modules that predict further tokens."""

from pretrain.config.model import Model
from pretrain.model_spec.layer import layer
from pretrain.model_spec.linears import norm, replicated_linear, under
from pretrain.model_spec.mtp import PREFIX as MTP
from pretrain.model_spec.mtp import mtp_depths, mtp_layer_name
from pretrain.model_spec.slots import NetworkPart, Specs


class MtpSpecs(NetworkPart):
    """Parameters of the modules that predict further tokens: of each the norms of its two inputs, their projection, a
    layer, and the norm before the shared head."""

    def further(self, model: Model) -> Specs:
        """See `NetworkPart`."""
        for depth in mtp_depths(model):
            name = f"{MTP}layers.{depth}."
            yield from under(f"{name}enorm.", norm(model))
            yield from under(f"{name}hnorm.", norm(model))
            yield from under(f"{name}eh_proj.", replicated_linear(model, 2 * model.hidden, model.hidden, bias=False))
            yield from under(f"{mtp_layer_name(depth)}.", layer(model, False, model.layers + depth))
            yield from under(f"{name}final_layernorm.", norm(model))
