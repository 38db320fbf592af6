"""Values derived from `model.mup`."""

from pretrain.config.values.base import Base


class MupValues(Base):
    """Values derived from `model.mup`."""

    @property
    def width_ratio(self) -> float:
        """Width of the model, relative to the one that its hyperparameters are for (`mup`)."""
        return 1.0 if self.mup is None else self.hidden / self.mup.base_width

    @property
    def ffn_ratio(self) -> float:
        """`width_ratio` of the inner features of feed-forward layers."""
        if self.mup is None or self.mup.base_ffn is None:
            return self.width_ratio
        return self.ffn_dim / self.mup.base_ffn

    @property
    def base_width(self) -> int:
        """Width of the model that the hyperparameters are for."""
        return self.hidden if self.mup is None else self.mup.base_width

    @property
    def input_multiplier(self) -> float:
        """Factor of the sum of embeddings."""
        return 1.0 if self.mup is None else self.mup.input_multiplier

    @property
    def output_multiplier(self) -> float:
        """Factor of the logits; one of rows of a fixed size (`embedding_size`) does not fall with the width."""
        if self.mup is None:
            return 1.0
        return self.mup.output_multiplier / (1.0 if self.embedding_size else self.width_ratio)

    @property
    def score_factor(self) -> float:
        """Factor of attention scores beside their usual scale, which makes them fall with the head size, not with its
        root."""
        if self.mup is None or self.mup.base_head_dim is None:
            return 1.0
        return float((self.mup.base_head_dim / self.dim_per_head) ** 0.5)
