"""PEGASUS's objective (Zhang et al. 2020, arXiv 1912.08777, section 3): the sentences of a document that say most of
the rest are left out of it, and are to be written out, as a summary would be.

Input: the document with a mask in place of each of these sentences, and </s>. Target: the sentences in their order, and
</s>. Sentences are compared with the rest by ROUGE-1 of tokens, which the paper computes of words.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_pipeline.batch import Rows
from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.dataset.without_begins import without_begins
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Ids, Sample, check_dataset, generator
from data_pipeline.recipes.objective import BoundedObjective, ModelShape
from data_pipeline.recipes.pieces import DocumentPieces
from data_pipeline.recipes.targets import RowShape, TargetRecipe
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import SpecialTokenNeeds


class GapSentences(BoundedObjective):
    """The sentences that are left out of a document (PEGASUS)."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"encoder_decoder"})

    name: Literal["gap_sentences"] = "gap_sentences"
    gap_fraction: float = Field(
        default=0.3, gt=0, lt=1, description="fraction of a text's sentences to leave out, at least one (PEGASUS: 0.3)"
    )
    selection: Literal["principal", "random", "lead"] = Field(
        default="principal",
        description="which sentences. principal: those with the best ROUGE-1 F1 against the rest, each by itself "
        "(Ind-Orig); random: any; lead: the first",
    )
    score_noise: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="scores of principal sentences times a random number between 1 minus and 1 plus this (PEGASUS "
        "large: 0.2)",
    )
    kept_fraction: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="probability that a chosen sentence is left in the input, too (PEGASUS large: 0.2)",
    )

    @property
    def needs_boundaries(self) -> bool:
        """See `BoundedObjective`."""
        return True

    @property
    def needs(self) -> SpecialTokenNeeds:
        """See `Objective`."""
        return SpecialTokenNeeds(roles=("pad", "mask"))

    def text_tokens(self, sequence_length: int, decoder_only: bool = False) -> int:
        """See `Objective`: text </s>."""
        return self._enough(sequence_length - 1, sequence_length)

    def target_length(self, sequence_length: int) -> int:
        """See `Objective`: half of the input, as the paper's 256 of 512; longer targets are cut."""
        return max(2, sequence_length // 2)

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> GapSentencesRecipe:
        """See `Objective`."""
        known = self.vocabulary(tokenizer)
        shape = RowShape(
            sequence_length=sequence_length,
            target_length=target_length or self.target_length(sequence_length),
            pad=known.specials.pad,
            start=known.specials.start,
        )
        return GapSentencesRecipe(self, shape, known, self.text_tokens(sequence_length))


@dataclass(frozen=True)
class GapSentencesRecipe(TargetRecipe):
    """Pieces of documents of up to `text_tokens`; each is a sample."""

    objective: GapSentences
    text_tokens: int

    def samples(self, dataset: Dataset, split: SplitName) -> GapSentencesSamples:
        """Raises DataError when no document has two tokens, or the dataset is of another kind."""
        check_dataset(dataset, self.known.tokenizer)
        text = without_begins(dataset)
        pieces = DocumentPieces(text, split, self.text_tokens)
        if pieces.count == 0:
            raise DataError(
                f"No document of the {split} split of {dataset.address} has two tokens; add text, and build it again."
            )
        return GapSentencesSamples(self, text, split, pieces)

    def sample(self, text: Ids, random: np.random.Generator) -> Sample:
        """(input, target) of a piece of text."""
        sentences = self.sentences(text)
        chosen = self.chosen(sentences, random)
        kept = random.random(len(sentences)) < self.objective.kept_fraction
        mask = np.array([self.known.specials.mask])
        shown = [mask if gap and not keep else one for one, gap, keep in zip(sentences, chosen, kept, strict=True)]
        target = np.concatenate([one for one, gap in zip(sentences, chosen, strict=True) if gap])
        return self.add_end_ids(np.concatenate(shown), target[: self.target_length - 1])

    def sentences(self, text: Ids) -> list[Ids]:
        """The sentences of a text; of one alone, its halves."""
        ends = np.flatnonzero(self.known.sentence_ends(text)[:-1]) + 1
        return np.split(text, ends if ends.size else [len(text) // 2])

    def chosen(self, sentences: list[Ids], random: np.random.Generator) -> NDArray[np.bool_]:
        """[sentences] which of them are left out: some, and never all."""
        objective, total = self.objective, len(sentences)
        count = min(total - 1, max(1, round(objective.gap_fraction * total)))
        order = np.arange(total)
        if objective.selection == "random":
            order = random.permutation(total)
        elif objective.selection == "principal":
            scores = rouge_of_rest(sentences)
            scores *= 1 + objective.score_noise * random.uniform(-1, 1, total)
            order = np.argsort(-scores, kind="stable")
        found: NDArray[np.bool_] = np.isin(np.arange(total), order[:count])
        return found


def rouge_of_rest(sentences: list[Ids]) -> NDArray[np.float64]:
    """[sentences] ROUGE-1 F1 of each against all others together, each token as often as it occurs."""
    own = [Counter(sentence.tolist()) for sentence in sentences]
    whole = sum(own, Counter[int]())
    total = whole.total()
    scores = []
    for sentence in own:
        common = sum(min(count, whole[token] - count) for token, count in sentence.items())
        scores.append(2 * common / total)
    return np.array(scores)


@dataclass(frozen=True)
class GapSentencesSamples:
    """The pieces of a split."""

    recipe: GapSentencesRecipe
    dataset: TokenText
    split: SplitName
    pieces: DocumentPieces

    @property
    def count(self) -> int:
        """See `Samples`."""
        return self.pieces.count

    @property
    def num_skipped(self) -> int:
        """See `Samples`."""
        return self.pieces.num_skipped

    def rows(self, seed: int, ids: Ids) -> Rows:
        """See `Samples`."""
        made = []
        for sample in ids:
            _, start, size = self.pieces.piece(int(sample[2]))
            text = self.dataset.window(self.split, start, size)
            made.append(self.recipe.sample(text, generator(seed, sample)))
        return self.recipe.shape.rows(made)

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Each piece."""
        places = [self.pieces.piece(int(sample[2])) for sample in ids]
        spans = np.array([(row, start, size) for row, (_, start, size) in enumerate(places)], np.int64).reshape(-1, 3)
        return self.dataset.as_written(self.split, spans)
