"""The settings of Shaw's positions. No torch."""

from typing import ClassVar, Literal

from pydantic import Field

from pretrain.config.position_settings import PositionSettings


class ShawPositions(PositionSettings):
    """Learned vectors of distances, in each layer, added to keys and to values (Shaw et al. 2018, arXiv 1803.02155)."""

    families: ClassVar[tuple[str, ...]] = ("transformer",)
    learns_scores: ClassVar[bool] = True
    name: Literal["shaw"] = "shaw"
    max_distance: int = Field(16, gt=0, description="distance to one side from which on all share a vector")
    per_head: bool = Field(False, description="vectors for each head rather than for each layer")

    @property
    def distance_rows(self) -> int:
        """See `PositionSettings`."""
        return 2 * self.max_distance + 1
