"""What the settings of all positions answer. No torch here: plans and estimates read them."""

from typing import ClassVar

from pretrain.config.section import Section


class PositionSettings(Section):
    """Settings of how a model knows the order of its tokens."""

    plugin_group: ClassVar[str] = "pretrain.positions"
    """Entry points of other packages' positions."""
    families: ClassVar[tuple[str, ...]] = ()
    """families that may have them besides those that say so themselves (`Capabilities.positions`)"""
    learns_scores: ClassVar[bool] = False
    """attention scores have learned terms besides the products of queries and keys"""

    name: str

    @property
    def distance_rows(self) -> int:
        """Distances to both sides that have learned vectors; 0: none have. Of positions with such vectors,
        `pretrain.distance_attention` has the attention by their name, and `pretrain.part_specs` the parameters."""
        return 0
