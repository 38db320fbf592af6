"""Deviations of initial weights, by `model.init`. A new scheme is a class and a row here, and its settings in
`config/init.py`."""

import math

from pretrain.config.model import Model


class Plain:
    """The scheme's `std`; projections into the residual stream divided by sqrt(2 * layers), the number of residual
    additions (GPT-2, section 2.3), where the model asks for it."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def projection(self, inputs: int, outputs: int) -> float:
        """Of a matrix [outputs, inputs]."""
        return self.model.init_std

    def into_residual(self, inputs: int, outputs: int) -> float:
        """Of one whose outputs are added to the residual stream."""
        additions = 2 * self.model.layers if self.model.scale_residual_init else 1
        return self.projection(inputs, outputs) / math.sqrt(additions)

    def query(self, inputs: int, outputs: int) -> float:
        """Of one that makes queries."""
        return self.projection(inputs, outputs)

    def table(self) -> float:
        """Of rows that are looked up, and of a head that is no embedding."""
        return self.model.init_std

    def words(self) -> float:
        """Of the token embedding."""
        return self.table()


class T5(Plain):
    """1 / sqrt(inputs), for the embedding 1, and for queries, as scores are not scaled, what makes up for it (Raffel et
    al. 2020, arXiv 1910.10683; mesh-tensorflow's defaults)."""

    def projection(self, inputs: int, outputs: int) -> float:
        return float(inputs**-0.5)

    def into_residual(self, inputs: int, outputs: int) -> float:
        return self.projection(inputs, outputs)

    def query(self, inputs: int, outputs: int) -> float:
        return float((inputs * self.model.dim_per_head) ** -0.5)

    def table(self) -> float:
        return float(self.model.hidden**-0.5)

    def words(self) -> float:
        return 1.0


class Xavier(Plain):
    """sqrt(2 / (inputs + outputs)) of each projection (Glorot, Bengio 2010); embeddings 1 / sqrt(width), which their
    scale makes up for."""

    def projection(self, inputs: int, outputs: int) -> float:
        return math.sqrt(2 / (inputs + outputs))

    def into_residual(self, inputs: int, outputs: int) -> float:
        return self.projection(inputs, outputs)

    def table(self) -> float:
        return float(self.model.hidden**-0.5)


SCHEMES: dict[str, type[Plain]] = {"normal": Plain, "t5": T5, "xavier": Xavier}
