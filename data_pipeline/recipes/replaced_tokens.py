"""ELECTRA (Clark et al. 2020, arXiv 2003.10555): a small generator predicts masked tokens, and the model says of every
token whether it is the original one or the generator's.

A sample is [CLS] text [SEP], as RoBERTa's. Chosen tokens become [MASK], but for 15% of them, which stay unchanged
(DeBERTa v3: none). The
generator's samples take the places of all chosen tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.recipes.masked import FullSentencesRecipe
from data_pipeline.recipes.masking import Masking, MaskingObjective
from data_pipeline.recipes.objective import TaskHead
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import Vocabulary


class ReplacedTokens(MaskingObjective):
    """Tokens that a generator replaced (ELECTRA)."""

    name: Literal["replaced_tokens"] = "replaced_tokens"
    replaced_weight: float = Field(
        default=50.0,
        gt=0,
        description="weight of the mean loss of all tokens, replaced or not, beside the mean loss of the generator's "
        "masked tokens; does not change samples",
    )

    masked_fraction: float = Field(
        default=0.85,
        gt=0,
        le=1,
        description="fraction of the chosen tokens that become [MASK] (ELECTRA: 0.85, DeBERTa v3: 1); the rest stay "
        "unchanged",
    )

    @property
    def loss(self) -> str:
        """See `Objective`."""
        return "replaced_tokens"

    @property
    def task_head(self) -> TaskHead:
        """See `Objective`."""
        return TaskHead("detector", 1)

    def text_tokens(self, sequence_length: int, decoder_only: bool = False) -> int:
        """See `Objective`."""
        return self._enough(sequence_length - 2, sequence_length)

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> ReplacedTokensRecipe:
        """See `Objective`."""
        known = Vocabulary.of(tokenizer, self.needs)
        return ReplacedTokensRecipe(self, sequence_length, known, self.text_tokens(sequence_length, decoder_only))


@dataclass(frozen=True)
class ReplacedTokensRecipe(FullSentencesRecipe):
    """Full sentences, without random tokens."""

    objective: ReplacedTokens

    def masking(self, dataset: Dataset, split: SplitName) -> Masking:
        """See `FullSentencesRecipe`."""
        density = self.objective.noise_density
        return Masking(known=self.known, noise_density=density, shares=(self.objective.masked_fraction, 0.0))
