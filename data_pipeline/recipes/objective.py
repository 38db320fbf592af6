"""Objectives: settings that define the samples of a dataset, one file for each or for a few similar ones.

`registry.py` has a row for each. Their losses are in `pretrain/objectives/`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from data_pipeline.config import StrictSettings
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Recipe, Samples
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import Specials, SpecialTokenNeeds, Vocabulary, WritingRule, specials

ModelShape = Literal["decoder", "prefix_decoder", "encoder", "encoder_decoder"]
"""Positions that each position attends to. decoder: earlier positions; prefix_decoder: also all of a prefix; encoder:
all."""

NoiseDensity = Annotated[float, Field(gt=0, lt=1, description="fraction of the tokens to corrupt")]


_NOT_OF_SAMPLES = frozenset({"label_smoothing", "z_loss", "padding", "replaced_weight", "conditional_end"})
"""Settings that samples do not depend on."""


@dataclass(frozen=True)
class TaskHead:
    """Head that replaces the language-model head of a model that is fine-tuned: a map from the last hidden state of
    each position to `outputs` numbers."""

    kind: Literal["sequence", "token", "span", "choice", "detector"]
    """sequence: one position of each row has an answer, for its entire text; token: each position has one; span: each
    position has one, for the first position of a span and, given that, for the last; choice: one
    position of each text of a row has one, which is compared with those of the others; detector: each position has one,
    behind a dense layer."""
    outputs: int
    """Numbers for each position."""
    language_model: bool = False
    """Whether the model keeps its language-model head beside it."""


class Objective(StrictSettings):
    """Settings of all objectives. Every subclass has a `name: Literal[...]` with that name as its default, and only
    settings that have an effect."""

    plugin_group: ClassVar[str] = "pretrain.objectives"
    """Entry points of other packages' objectives."""
    suits: ClassVar[frozenset[ModelShape]]
    """Shapes of models that can be trained on its rows."""
    predicts_next: ClassVar[bool] = False
    """Whether its labels are the next tokens of plain text, so that a trained model can continue text."""
    labelled: ClassVar[bool] = False
    """Whether its samples are made of labelled rows (`labelled/dataset.py`), not of tokenized text."""
    reads_source_vocabulary: ClassVar[bool] = False
    """Whether inputs may be in another vocabulary than targets (`FormatRecipe.with_source`)."""

    name: str
    label_smoothing: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="probability mass of each target that is spread evenly over all ids (Transformer); does not "
        "change samples",
    )
    z_loss: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="weight of an additional loss, the squared logarithm of the softmax's denominator, which keeps "
        "logits from drifting (PaLM: 1e-4); does not change samples",
    )

    @property
    def loss(self) -> str:
        """Name of the loss: a row of pretrain/objectives/registry.py."""
        return "tokens"

    @property
    def backward(self) -> bool:
        """Whether texts are read from their end: the next token is the one to the left."""
        return False

    @property
    def row_length(self) -> int | None:
        """Positions of each text of a row; None: as many as the model is made for."""
        return None

    @property
    def pads_to_longest(self) -> bool:
        """Whether a model computes no more positions of a micro-batch than its longest row has."""
        return False

    @property
    def texts_per_row(self) -> int:
        """Texts that lie side by side in a row, each with its own positions."""
        return 1

    @property
    def task_head(self) -> TaskHead | None:
        """The head that a model needs for its labels; None: the language-model head."""
        return None

    @property
    def columns(self) -> frozenset[str]:
        """Columns of `batch.Rows` that its rows have and that not every model supports."""
        return frozenset()

    @property
    def num_segments(self) -> int:
        """Number of segments (token types) in its rows; 0 without segments."""
        return 2 if "segments" in self.columns else 0

    @property
    def needs(self) -> SpecialTokenNeeds:
        """The special tokens that samples need."""
        return SpecialTokenNeeds()

    def specials(self, tokenizer: Tokenizer) -> Specials:
        """The ids of the special tokens, with `tokenizer`."""
        return specials(tokenizer, self.needs)

    def vocabulary(self, tokenizer: Tokenizer) -> Vocabulary:
        """The vocabulary of `tokenizer`, with what samples need of it."""
        return Vocabulary.of(tokenizer, self.needs)

    def settings(self) -> dict[str, Any]:
        """Settings that samples depend on, as plain values: part of the fingerprint of an order of samples."""
        plain = self.model_dump(mode="json", exclude_defaults=True, exclude={"name", *_NOT_OF_SAMPLES})
        return {"name": self.name, **plain}

    def for_model(self, shape: ModelShape, *, input_format: str | None, segments: bool, packing: bool) -> Self:
        """A copy with the settings that follow from a model where they are not set: from its shape, the input format of
        its family (None: that of the shape), whether it distinguishes segments, and whether its rows may be packed."""
        return self

    def for_new_run(self) -> Self:
        """A copy with the settings that a new run has where they are not set, and that runs lack which an earlier
        version began."""
        return self

    def advance(self, sequence_length: int) -> int:
        """Positions of a row that lie before the row that continues it."""
        return sequence_length

    def text_tokens(self, sequence_length: int, decoder_only: bool = False) -> int:
        """Tokens of text in a sample: as many as fit into `sequence_length` positions with the input's special tokens,
        or, with `decoder_only`, with the target too. Raises DataError for a length that is too short for text."""
        return sequence_length

    def target_length(self, sequence_length: int) -> int:
        """Target positions L for inputs of `sequence_length`; the same length if labels are those of the input.
        Raises DataError for a length that is too short for text."""
        self.text_tokens(sequence_length)
        return sequence_length

    def check_sources(self, names: Sequence[str], samples: Sequence[Samples]) -> None:
        """Raises DataError if the training samples of a run's sources, which have these names, together do not suit the
        objective."""

    @abstractmethod
    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> Recipe:
        """The recipe for datasets made with `tokenizer`.

        `target_length` defaults to the objective's; a longer one is padded. With `decoder_only`, input and target are
        one sequence of `sequence_length`, and `target_length` is ignored. Raises DataError for unusable lengths or
        settings.
        """

    def _enough(self, text_tokens: int, sequence_length: int) -> int:
        """Returns `text_tokens`, or raises DataError if they are too few for a sample."""
        if text_tokens < 2:
            raise DataError(f"{sequence_length} positions are too few for a sample of {self.name}; use longer ones.")
        return text_tokens


class BoundedObjective(Objective):
    """Settings of objectives whose samples depend on where words begin and sentences end."""

    boundaries: WritingRule | None = Field(
        default=None,
        description="where words begin and sentences end. unicode: by Unicode's properties of characters, in the "
        "writing of any language; each letter of a script without spaces between words (Han, kana, Thai) is a word; "
        "ascii: words behind white space, sentences at . ! ?; default: unicode for a new run that needs them, ascii "
        "for one that an earlier version began",
    )

    @property
    @abstractmethod
    def needs_boundaries(self) -> bool:
        """Whether samples depend on them."""

    @property
    def needs_sentences(self) -> bool:
        """Whether samples depend on where sentences end."""
        return self.needs_boundaries

    @model_validator(mode="after")
    def _boundaries_are_needed(self) -> Self:
        if self.boundaries is not None and not self.needs_boundaries:
            raise ValueError(
                f"objective.boundaries={self.boundaries} does nothing: no setting of objective.name={self.name} asks "
                "where words begin or sentences end; leave it out"
            )
        return self

    def vocabulary(self, tokenizer: Tokenizer) -> Vocabulary:
        """See `Objective`: with these boundaries."""
        return Vocabulary.of(tokenizer, self.needs, self.boundaries)

    def for_new_run(self) -> Self:
        """See `Objective`."""
        is_open = self.boundaries is None and self.needs_boundaries
        return self.model_copy(update={"boundaries": "unicode"}) if is_open else self

    def settings(self) -> dict[str, Any]:
        """See `Objective`: without boundaries by the first rule, which had no key."""
        return {key: value for key, value in super().settings().items() if (key, value) != ("boundaries", "ascii")}


class NextTokenObjective(Objective):
    """Settings of objectives whose labels are the next tokens of texts that end as documents do."""

    predicts_next: ClassVar[bool] = True

    packing: str | None = None

    @property
    def columns(self) -> frozenset[str]:
        """See `Objective`: packed rows say which document each token is of."""
        return frozenset({"documents"} if self.packing == "best_fit" else ())

    @property
    def needs(self) -> SpecialTokenNeeds:
        """See `Objective`: none beyond the tokenizer's own."""
        return SpecialTokenNeeds(roles=(), end="end_of_text")
