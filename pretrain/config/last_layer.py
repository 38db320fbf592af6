"""The key of a part that applies the last layer several times."""

from dataclasses import dataclass

from pretrain.config.part_key import PartKey


@dataclass(frozen=True, kw_only=True)
class LastLayerKey(PartKey[int]):
    """Times that the last layer of an encoder is applied before tokens are predicted. Each time it reads the states of
    the layer before it, besides queries of its own. A model has at most one such part, which is found by this class."""

    module: str
    """name of the part's module, in which further uses are `layers.0`, `layers.1`, ..."""
