"""What a source encoder computes and keeps: the layers of a model in front (`models/source_encoder.py`)."""

from pretrain.config.model import Model
from pretrain.plan.estimate.model_work import ModelWork


class SourceEncoderWork(ModelWork):
    """See `ModelWork`."""

    def front(self, model: Model) -> Model | None:
        """See `ModelWork`."""
        return None if model.source_encoder is None else model.source_model
