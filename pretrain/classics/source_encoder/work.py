"""Work of a source encoder, the operations and the memory: those of the layers of a model in front."""

from pretrain.classics.source_encoder.key import KEY
from pretrain.config.model import Model
from pretrain.plan.estimate.model_work import ModelWork


class SourceEncoderWork(ModelWork):
    """See `ModelWork`."""

    def front(self, model: Model) -> Model | None:
        """See `ModelWork`."""
        return None if KEY.of(model) is None else model.source_model


WORK = SourceEncoderWork()
