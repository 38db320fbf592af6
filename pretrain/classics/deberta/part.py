"""Settings that go with DeBERTa's parts. No torch."""

from pretrain.classics.deberta import key
from pretrain.config.model_values import ModelValues
from pretrain.config.part import ModelPart


class MaskDecoderPart(ModelPart[int]):
    """The last layer several times, before tokens are predicted."""

    key = key.MASK_DECODER


class ConvolutionPart(ModelPart[str]):
    """A convolution beside the first layer."""

    key = key.CONVOLUTION

    def check(self, model: ModelValues) -> None:
        """See `ModelPart`."""
        super().check(model)
        uses = key.MASK_DECODER.of(model)
        if self.of(model) is not None and model.layers == 1 and uses is not None:
            raise ValueError(
                f"model.convolution is beside the first layer, which model.mask_decoder_layers="
                f"{uses} would apply again with model.layers=1: use more layers"
            )


MASK_DECODER, CONVOLUTION = MaskDecoderPart(), ConvolutionPart()
