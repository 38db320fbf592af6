"""The settings of DeBERTa's parts. No torch."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from pretrain.config.last_layer import LastLayerKey
from pretrain.config.part_key import PartKey
from pretrain.config.position_settings import PositionSettings


class DisentangledPositions(PositionSettings):
    """Learned vectors of distances, shared by all layers. Each layer makes keys and queries of them, which meet the
    queries and keys of tokens in its scores (DeBERTa: He et al. 2020, arXiv 2006.03654)."""

    learns_scores: ClassVar[bool] = True
    score_products: ClassVar[int] = 3
    counts_in_row: ClassVar[bool] = True
    name: Literal["disentangled"] = "disentangled"
    max_distance: int = Field(512, gt=1, description="distance to one side from which on all share a vector")
    num_buckets: int | None = Field(
        None,
        gt=1,
        description="buckets of distances to one side: the first half of them one distance each, the others growing "
        "with the logarithm (DeBERTa v2, v3: 256); absent: each distance has its own vector",
    )
    shared_projections: bool = Field(
        False,
        description="make keys and queries of distances with the projections of tokens (DeBERTa v3); otherwise with "
        "projections of their own (v1)",
    )
    norm: bool = Field(False, description="norm of the vectors before layers read them (DeBERTa v2, v3)")

    @property
    def distance_rows(self) -> int:
        """See `PositionSettings`."""
        return 2 * (self.num_buckets or self.max_distance)

    @property
    def distance_linears(self) -> int:
        """See `PositionSettings`."""
        return 1 if self.shared_projections else 2

    @model_validator(mode="after")
    def _half_the_buckets_hold_one_distance(self) -> "DisentangledPositions":
        if self.num_buckets is not None and (self.num_buckets % 2 or self.max_distance - 1 <= self.num_buckets // 2):
            raise ValueError(
                f"model.positions.num_buckets={self.num_buckets} must be even, and model.positions.max_distance="
                f"{self.max_distance} more than half of them, and one"
            )
        return self


def disentangled(positions: PositionSettings) -> DisentangledPositions:
    """The positions of a model of the family."""
    assert isinstance(positions, DisentangledPositions), "the family has no others"
    return positions


MASK_DECODER = LastLayerKey(
    name="mask_decoder_layers",
    settings=Annotated[int, Field(ge=0)],  # type: ignore[arg-type]  # which is no class
    description="times that the last layer is applied, with embeddings of absolute positions added to its first "
    "queries, before tokens are predicted (DeBERTa's enhanced mask decoder: 2); 0: once, without them",
    follows="tie_encoder_decoder",
    default=0,
    module="mask_decoder",
)
KERNEL = 3
"""positions that a convolution reads for each"""
CONVOLUTION: PartKey[str] = PartKey(
    "convolution",
    Literal["gelu", "tanh"],  # type: ignore[arg-type]  # which is no class
    description="activation of a convolution over each token and its two neighbours, which reads what the first "
    "layer reads and is added to its output (DeBERTa v2 xlarge: gelu); default: no convolution",
    follows="mask_decoder_layers",
)
