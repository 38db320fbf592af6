"""`model.recurrent`: cells, encoder and attention of a recurrent network (the rnn family)."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field

from pretrain.config.part_key import PartKey
from pretrain.config.recurrence import RecurrenceSettings
from pretrain.config.section import Section, named


class TanhCell(Section):
    """h = tanh(W x + U h + b) (Elman 1990)."""

    name: Literal["tanh"] = "tanh"


class LstmCell(Section):
    """Input, forget and output gates around a cell state (Hochreiter, Schmidhuber 1997; Gers et al. 2000)."""

    name: Literal["lstm"] = "lstm"
    forget_bias: float = Field(
        1.0, description="constant added to the forget gate before its sigmoid, beside its learned bias"
    )


class GruCell(Section):
    """Reset and update gates (Cho et al. 2014, arXiv 1406.1078), the reset after the product, as in cuDNN."""

    name: Literal["gru"] = "gru"


CellSettings = Annotated[TanhCell | LstmCell | GruCell, Discriminator("name"), BeforeValidator(named())]

GATES = {"tanh": 1, "lstm": 4, "gru": 3}
"""blocks of rows of a cell's matrices"""


class AdditiveScore(Section):
    """v tanh(W s + U h), of the decoder's state before the step; the context is part of the cell's input (Bahdanau et
    al. 2014, arXiv 1409.0473)."""

    name: Literal["additive"] = "additive"
    size: int | None = Field(None, gt=0, description="rows of W and U; default: model.hidden")


class ConcatScore(Section):
    """v tanh(W [s; h]), of the decoder's state after the step (Luong et al. 2015, arXiv 1508.04025)."""

    name: Literal["concat"] = "concat"
    size: int | None = Field(None, gt=0, description="rows of W; default: model.hidden")
    input_feeding: bool = Field(True, description="the attentional state is part of the next step's input")


class DotScore(Section):
    """s h, of the decoder's state after the step (Luong et al. 2015)."""

    name: Literal["dot"] = "dot"
    input_feeding: bool = Field(True, description="the attentional state is part of the next step's input")


class GeneralScore(Section):
    """s W h, of the decoder's state after the step (Luong et al. 2015)."""

    name: Literal["general"] = "general"
    input_feeding: bool = Field(True, description="the attentional state is part of the next step's input")


ScoreSettings = Annotated[
    AdditiveScore | ConcatScore | DotScore | GeneralScore, Discriminator("name"), BeforeValidator(named())
]


class Recurrent(RecurrenceSettings):
    """Settings of the rnn family, whose encoder-decoder and language model have cells of one kind."""

    cell: CellSettings = LstmCell()
    encoder: Literal["bidirectional", "forward", "backward"] | None = Field(
        None,
        description="how the encoder reads its input; backward: from its end, which a reversed source amounts to "
        "(Sutskever et al. 2014); default: bidirectional",
    )
    encoder_size: int | None = Field(
        None,
        gt=0,
        description="units of the encoder in each direction; default: model.hidden, divided by the directions",
    )
    score: ScoreSettings | None = Field(
        None, description="attention score of a decoder state and an encoder state; default: no attention"
    )
    initial_state: Literal["dense", "copy"] | None = Field(
        None,
        description="state in which the decoder starts. dense: tanh of a linear map of the encoder's last states, "
        "layer by layer; copy: these states; default: dense",
    )

    @property
    def attends(self) -> bool:
        """See `RecurrenceSettings`."""
        return self.score is not None

    @property
    def directions(self) -> tuple[str, ...]:
        """Directions in which the encoder reads."""
        return ("forward", "backward") if self.encoder in (None, "bidirectional") else (str(self.encoder),)

    @property
    def gates(self) -> int:
        return GATES[self.cell.name]

    @property
    def states(self) -> int:
        """Vectors that a cell hands to the next step."""
        return 2 if self.cell.name == "lstm" else 1

    @property
    def starts_dense(self) -> bool:
        return self.initial_state != "copy"

    @property
    def feeds(self) -> bool:
        """Whether a step reads the attentional state of the step before it."""
        return self.score is not None and not isinstance(self.score, AdditiveScore) and self.score.input_feeding

    @property
    def reads_context(self) -> bool:
        """Whether the context of a step is part of its cell's input."""
        return isinstance(self.score, AdditiveScore)

    @property
    def compares_by_vector(self) -> bool:
        """Whether a score is the product of a vector and features of both states."""
        return isinstance(self.score, AdditiveScore | ConcatScore)

    def encoder_units(self, hidden: int) -> int:
        """Units of each direction of the encoder."""
        return self.encoder_size or hidden // len(self.directions)

    def annotation(self, hidden: int) -> int:
        """Width of the encoder's states, which the decoder attends to."""
        return len(self.directions) * self.encoder_units(hidden)

    def score_size(self, hidden: int) -> int:
        """Width in which additive and concat scores compare states."""
        assert isinstance(self.score, AdditiveScore | ConcatScore)
        return self.score.size or hidden


KEY = PartKey(
    "recurrent",
    Recurrent,
    description="cells, encoder and attention of a recurrent network (rnn); default: none",
    follows="attention",
)


def cells_of(model: Section) -> Recurrent:
    """The settings of a model that has them."""
    settings = KEY.of(model)
    assert settings is not None, "of the family"
    return settings
