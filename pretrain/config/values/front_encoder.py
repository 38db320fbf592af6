"""Values derived from a part in front of an encoder-decoder that reads tokens of another vocabulary."""

from typing import Self

from pretrain.config.front_encoder import FrontEncoderSettings
from pretrain.config.part_keys import KEYS_APART, keys_of_kind
from pretrain.config.values.base import Base


class FrontEncoderValues(Base):
    """Values of a model with such a part, or without one."""

    @property
    def front_encoder_key(self) -> str | None:
        """The key of that part; None: tokens of one vocabulary are embedded."""
        return next((key.name for key in keys_of_kind(FrontEncoderSettings) if key.of(self) is not None), None)

    @property
    def front_encoder(self) -> FrontEncoderSettings | None:
        """Settings of that part."""
        key = self.front_encoder_key
        return None if key is None else KEYS_APART[key].of(self)

    @property
    def source_model(self) -> Self:
        """The part as a model of one stack of encoder layers, whose vocabulary is its own."""
        front = self.front_encoder
        assert front is not None
        alone = self.without_front_encoder()
        changes = {"layers": 0, "encoder_layers": front.layers}
        return alone.model_copy(update={**changes, "vocabulary": front.vocabulary, "target_length": None})

    def without_front_encoder(self) -> Self:
        """The model without that part."""
        key = self.front_encoder_key
        return self if key is None else self.model_copy(update={key: None})

    def with_source_vocabulary(self, vocabulary: int | None) -> Self:
        """The model, that part of which reads so many token ids."""
        key, front = self.front_encoder_key, self.front_encoder
        assert key is not None
        assert front is not None
        return self.model_copy(update={key: front.model_copy(update={"vocabulary": vocabulary})})
