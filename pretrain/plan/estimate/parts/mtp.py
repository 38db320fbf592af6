"""Work of further predictions, what they compute and keep: layers behind the last one
(`models/multi_token_prediction.py`)."""

from collections.abc import Sequence

from pretrain.config.model import Model
from pretrain.model_spec.mtp import mtp_depths
from pretrain.plan.estimate.model_work import ModelWork


class MtpWork(ModelWork):
    """See `ModelWork`."""

    def behind(self, model: Model) -> Sequence[int]:
        """See `ModelWork`."""
        return [model.layers + depth for depth in mtp_depths(model)]
