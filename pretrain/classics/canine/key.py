"""`model.characters`: an encoder that reads characters, and whose layers see fewer positions."""

from pydantic import Field

from pretrain.config.downsampling import DownsamplingSettings
from pretrain.config.part_key import PartKey

OBJECTIVES_OF_CHARACTERS = ("character_spans", "character_subwords")
"""first the one that predicts them one after the other"""


class CharacterShape(DownsamplingSettings):
    """CANINE (Clark et al. 2022, arXiv 2103.06874, section 3). `model.layers` work on every `rate` characters as one
    position, a molecule; one more layer before them, and one behind them, work on characters. Widths, heads, norms and
    dropout are those of `model`."""

    hashes: int = Field(
        8, gt=0, le=16, description="number of hash functions; each embeds a character in hidden / hashes features"
    )
    buckets: int = Field(
        16384, gt=1, description="number of buckets of each hash function, and of positions in the table"
    )
    block: int = Field(128, gt=1, description="characters that attend to each other in the first layer")
    rate: int = Field(4, gt=1, description="number of characters that one position of the layers is made of")
    kernel: int = Field(
        4, gt=0, description="number of characters that the convolution before the last layer reads at a time"
    )
    autoregressive: bool = Field(
        False,
        description="predict characters one after the other, each by a further layer that reads those before it "
        "(objective.name=character_spans)",
    )

    @property
    def row_rate(self) -> int:
        """See `DownsamplingSettings`."""
        return self.rate

    @property
    def position_rows(self) -> int:
        """See `DownsamplingSettings`."""
        return self.buckets

    @property
    def in_order(self) -> bool:
        """See `DownsamplingSettings`."""
        return self.autoregressive


KEY = PartKey(
    "characters",
    CharacterShape,
    description="how a model of characters reads them (CANINE); default: that of its family, or none",
    follows="tie_word_embeddings",
)
