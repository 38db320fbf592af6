"""`model.source_encoder`: a new encoder that reads another vocabulary, in front of an encoder-decoder."""

from pydantic import Field

from pretrain.config.front_encoder import FrontEncoderSettings
from pretrain.config.part_key import PartKey


class SourceEncoderShape(FrontEncoderSettings):
    """Lewis et al. 2020, arXiv 1910.13461, section 3.4: its output takes the place of the encoder's token embeddings.
    Widths, heads, norms and dropout are those of `model`."""

    layers: int = Field(6, gt=0, le=256, description="number of layers of the source encoder (BART: 6)")
    vocabulary: int | None = Field(
        None,
        gt=0,
        description="number of token ids that the source encoder reads; default: those of data.source_tokenizer and "
        "the objective",
    )


KEY = PartKey(
    "source_encoder",
    SourceEncoderShape,
    description="a new encoder that reads tokens of another vocabulary, such as another language's, and whose "
    "output takes the place of the encoder's token embeddings (BART, section 3.4); default: none",
    follows="tie_word_embeddings",
)
