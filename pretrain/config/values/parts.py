"""Values derived from the keys of all parts."""

from pretrain.config.values.downsampling import DownsamplingValues
from pretrain.config.values.experts import ExpertValues
from pretrain.config.values.front_encoder import FrontEncoderValues
from pretrain.config.values.latent_attention import LatentValues
from pretrain.config.values.mup import MupValues
from pretrain.config.values.recurrence import RecurrenceValues


class PartValues(MupValues, FrontEncoderValues, DownsamplingValues, LatentValues, ExpertValues, RecurrenceValues):
    """Values of a model with these parts, or without them."""
