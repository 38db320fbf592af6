"""What an objective is: settings that know what samples they make of a dataset, one file for each, or for a few alike.

`registry.py` has a row for each. What a model says to the samples is judged in `pretrain/objectives/`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from data_pipeline.config import StrictSettings
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Recipe
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import Specials, SpecialTokenNeeds, specials

ModelShape = Literal["decoder", "prefix_decoder", "encoder", "encoder_decoder"]
"""Whom a model's positions see. decoder: each what lies before it; prefix_decoder: besides, all of a prefix."""

NoiseDensity = Annotated[float, Field(gt=0, lt=1, description="part of the tokens that is corrupted")]


_OF_THE_LOSS = frozenset({"label_smoothing", "z_loss"})
"""Settings that samples do not depend on."""


class Objective(StrictSettings):
    """What all objectives can be told. Every subclass has a `name: Literal[...]` with that name as its default, and
    settings that each do something."""

    plugin_group: ClassVar[str] = "pretrain.objectives"
    """Entry points of other packages' objectives."""
    suits: ClassVar[frozenset[ModelShape]]
    """Models that can be trained on its rows."""
    predicts_next: ClassVar[bool] = False
    """Its labels are the next tokens of text as it is, so that a model trained on it can continue text."""

    name: str
    label_smoothing: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="part of each target's probability that all ids share alike (Transformer); samples stay as they "
        "are",
    )
    z_loss: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="weight of a further term of the loss, the squared logarithm of the softmax's denominator, which "
        "keeps logits from drifting (1e-4: PaLM); samples stay as they are",
    )

    @property
    def loss(self) -> str:
        """How answers are judged: a row of pretrain/objectives/registry.py."""
        return "tokens"

    @property
    def columns(self) -> frozenset[str]:
        """Columns of `batch.Rows` that not every model knows what to do with, and that its rows have."""
        return frozenset()

    @property
    def num_segments(self) -> int:
        """That its rows tell apart, if they have segments."""
        return 2 if "segments" in self.columns else 0

    @property
    def needs(self) -> SpecialTokenNeeds:
        """The special ids that samples are made with."""
        return SpecialTokenNeeds()

    def specials(self, tokenizer: Tokenizer) -> Specials:
        """Those ids, with `tokenizer`."""
        return specials(tokenizer, self.needs)

    def settings(self) -> dict[str, Any]:
        """What samples depend on, as plain values: part of what tells one order of samples from another."""
        plain = self.model_dump(mode="json", exclude_defaults=True, exclude={"name", *_OF_THE_LOSS})
        return {"name": self.name, **plain}

    def text_tokens(self, sequence_length: int, decoder_only: bool = False) -> int:
        """Tokens of text in a sample: as many as fill `sequence_length` positions with the input and its specials, or,
        with `decoder_only`, with the input and its target together. Raises DataError for a length that holds no
        text."""
        return sequence_length

    def target_length(self, sequence_length: int) -> int:
        """Target positions L for inputs of `sequence_length`; of objectives that label their own input, that length.
        Raises DataError for a length that holds no text."""
        self.text_tokens(sequence_length)
        return sequence_length

    @abstractmethod
    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> Recipe:
        """Samples of the datasets that `tokenizer` made.

        `target_length` is what the objective needs unless given; a longer one is padded. With `decoder_only`, input and
        target are one sequence of `sequence_length`, and `target_length` says nothing. Raises DataError for lengths or
        settings that don't do.
        """

    def _enough(self, text_tokens: int, sequence_length: int) -> int:
        """`text_tokens`, if a sample can be made of as few."""
        if text_tokens < 2:
            raise DataError(f"{sequence_length} positions are too few for a sample of {self.name}; use longer ones.")
        return text_tokens
