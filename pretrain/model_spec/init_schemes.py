"""Standard deviations of initial weights, by `model.init`. A new scheme is a class and a row of `SCHEMES` here, and its
settings in `config/init.py`."""

import math

from pretrain.config.model import Model


class NormalScheme:
    """The `std` of the settings; projections into the residual stream are divided by sqrt(2 * layers), the number of
    residual additions (GPT-2, section 2.3), if the model says so."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def projection(self, inputs: int, outputs: int) -> float:
        """A matrix [outputs, inputs]."""
        return self.model.init_std

    def into_residual(self, inputs: int, outputs: int) -> float:
        """A matrix whose outputs are added to the residual stream."""
        encoder_layers, decoder_layers = self.model.stacks
        additions = 2 * (decoder_layers or encoder_layers) if self.model.scale_residual_init else 1
        return self.projection(inputs, outputs) / math.sqrt(additions)

    def query(self, inputs: int, outputs: int) -> float:
        """A matrix that produces queries."""
        return self.projection(inputs, outputs)

    def table(self) -> float:
        """Embeddings other than the token embedding, and an untied output layer."""
        return self.model.init_std

    def word_embeddings(self) -> float:
        """The token embedding."""
        return self.table()


class T5Scheme(NormalScheme):
    """1 / sqrt(inputs); 1 for the token embedding; queries are smaller by the factor with which other models scale
    scores (Raffel et al. 2020, arXiv 1910.10683; mesh-tensorflow's defaults)."""

    def projection(self, inputs: int, outputs: int) -> float:
        return float(inputs**-0.5)

    def into_residual(self, inputs: int, outputs: int) -> float:
        return self.projection(inputs, outputs)

    def query(self, inputs: int, outputs: int) -> float:
        return float((inputs * self.model.dim_per_head) ** -0.5)

    def table(self) -> float:
        return float(self.model.base_width**-0.5)

    def word_embeddings(self) -> float:
        return 1.0


class XavierScheme(NormalScheme):
    """sqrt(2 / (inputs + outputs)) for projections (Glorot, Bengio 2010); 1 / sqrt(hidden) for embeddings, which the
    model scales up again. Under `model.mup` those are 1 / sqrt(base_width) at every width."""

    def projection(self, inputs: int, outputs: int) -> float:
        return math.sqrt(2 / (inputs + outputs))

    def into_residual(self, inputs: int, outputs: int) -> float:
        return self.projection(inputs, outputs)

    def table(self) -> float:
        return float(self.model.base_width**-0.5)


SCHEMES: dict[str, type[NormalScheme]] = {"normal": NormalScheme, "t5": T5Scheme, "xavier": XavierScheme}
