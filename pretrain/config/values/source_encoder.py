"""What follows from `model.source_encoder`."""

from typing import Self

from pretrain.config.values.base import Base


class SourceEncoderValues(Base):
    """What follows from `model.source_encoder`."""

    @property
    def source_model(self) -> Self:
        """`source_encoder` as a model of one stack of encoder layers, whose vocabulary is its own."""
        assert self.source_encoder is not None
        changes = {"layers": 0, "encoder_layers": self.source_encoder.layers, "source_encoder": None}
        return self.model_copy(update={**changes, "vocabulary": self.source_encoder.vocabulary, "target_length": None})
