"""Interface of the settings of positions. No torch here: plans and estimates read them."""

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
    score_products: ClassVar[int] = 1
    """products that a score is the sum of, which its scale counts"""
    counts_in_row: ClassVar[bool] = False
    """distances are those in the row, also where each text has positions of its own"""

    name: str

    @property
    def distance_rows(self) -> int:
        """Distances to both sides that have learned vectors; 0: none have. Of positions with such vectors,
        `pretrain.distance_attention` has the attention by their name, and `pretrain.part_specs` the parameters."""
        return 0

    @property
    def distance_linears(self) -> int:
        """Linear layers by which each layer makes keys and queries of vectors that all layers have in common: 1, that
        of tokens, which makes values, too; or 2 of its own. 0: each layer has vectors of its own, or there are none.
        `pretrain.part_modules` has the module of the common ones, and self-attention that reads them."""
        return 0
