"""Values derived from `model.experts`."""

from pretrain.config.values.base import Base


class ExpertValues(Base):
    """Values derived from `model.experts`."""

    @property
    def expert_ffn_dim(self) -> int:
        """Size of one expert's feed-forward layer."""
        assert self.experts is not None
        return self.experts.ffn or self.ffn_dim

    def has_experts(self, layer: int) -> bool:
        """Whether this layer of the decoder, from 0, has experts in place of one feed-forward layer."""
        return self.experts is not None and layer >= self.experts.dense_layers

    def active_ffn_dim(self, layer: int) -> int:
        """Features of feed-forward layers that each token passes through in this layer of the decoder."""
        if self.experts is None or not self.has_experts(layer):
            return self.ffn_dim
        return (self.experts.top_k + self.experts.shared) * self.expert_ffn_dim

    @property
    def has_expert_layers(self) -> bool:
        """Whether some layer has experts."""
        return self.experts is not None
