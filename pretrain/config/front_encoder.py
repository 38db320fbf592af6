"""Settings of a part in front of an encoder-decoder that reads tokens of another vocabulary."""

from pretrain.config.section import Section


class FrontEncoderSettings(Section):
    """A model has at most one such part, which is found by this class: layers like those of its encoder, whose output
    takes the place of the encoder's token embeddings. Names of its parameters begin with its key."""

    layers: int
    vocabulary: int | None
    """number of token ids that it reads; None: not known yet"""
