"""Size of a model, as a scaling law counts it."""

from math import prod

from pretrain.config.model import Model
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameters import num_idle_parameters


def parameters_at_work(model: Model) -> int:
    """Parameters that every token is computed with: those of the layers and of the head, not tables that rows are
    looked up in. A tied embedding is the head's, and layers that are one count as often as they are computed. Of
    experts, those count that a token passes through: by all, compute would be another multiple of N D at each size, as
    the head of small models is a larger part of what a token passes through than of all.

    By this N compute is near 6 N D at every size. Counting less (without the head of small models) or more bends laws
    (Porian et al. 2024, arXiv 2406.19146; Pearce and Song 2024, arXiv 2406.12907)."""
    return sum(prod(d.unpadded_shape) for d in parameter_specs(model) if d.depth > 0) - num_idle_parameters(model)
