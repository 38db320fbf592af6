"""The parameters of the activation, in a feed-forward layer. No torch."""

from math import expm1, log

from example_plugin.apertus.key import KEY
from pretrain.config.model import Model
from pretrain.model_spec.feed_forward import feed_forward
from pretrain.model_spec.linears import vector
from pretrain.model_spec.slots import PartSpecs, Specs

BETA = 0.5


class XieluSpecs(PartSpecs):
    def feed_forward(self, model: Model, number: int) -> Specs | None:
        return self._all(model) if KEY.of(model) is not None else None

    def _all(self, model: Model) -> Specs:
        settings = KEY.of(model)
        assert settings is not None
        yield from feed_forward(model, model.ffn_dim)
        yield vector("alpha_p", 1, start=log(expm1(settings.alpha_p)))
        yield vector("alpha_n", 1, start=log(expm1(settings.alpha_n - BETA)))


SPECS = XieluSpecs()
