"""Work of DeBERTa's parts, what they compute and keep, for `pretrain plan`. No torch."""

from pretrain.classics.deberta import key
from pretrain.config.model import Model
from pretrain.plan.estimate.model_work import ModelWork


class ConvolutionWork(ModelWork):
    """A convolution beside the first layer."""

    def positions_beside_first(self, model: Model) -> int:
        """See `ModelWork`."""
        return key.KERNEL


MASK_DECODER = ModelWork()  # uses of the last layer are those of the model
CONVOLUTION = ConvolutionWork()
