"""A tag for each word of a text: the first token of a word carries it (BERT: Devlin et al. 2019, section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, StrictStr

from data_pipeline.batch import Rows
from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.labelled.dataset import LabelledDataset, Row
from data_pipeline.recipes.base import Ids, Samples
from data_pipeline.recipes.class_labels import check_classes, class_id, distinct
from data_pipeline.recipes.input_format import JoinedTexts
from data_pipeline.recipes.labelled import FormatObjective, FormatRecipe, RowSamples
from data_pipeline.recipes.objective import TaskHead
from data_pipeline.tokenizers.base import Tokenizer

_NO_POSITION = -1


class Tagging(FormatObjective):
    """A tag for each word of a text (entities, parts of speech)."""

    field_keys: ClassVar[tuple[str, ...]] = ("words", "tags")

    name: Literal["tagging"] = "tagging"
    words: str = Field(default="words", description="field that holds the list of words")
    tags: str = Field(default="tags", description="field that holds the list of tags, one for each word")
    labels: Annotated[list[StrictStr], AfterValidator(distinct)] = Field(
        min_length=2, description="names of the tags, in the order of class ids"
    )

    @property
    def loss(self) -> str:
        """See `Objective`."""
        return "classes"

    @property
    def task_head(self) -> TaskHead:
        """See `Objective`: a number for each tag, at each position."""
        return TaskHead("token", len(self.labels))

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> TaggingRecipe:
        """See `Objective`."""
        inputs = self.input_format(tokenizer, sequence_length, target_length, decoder_only)
        inputs.check_lengths(1)
        return TaggingRecipe(objective=self, inputs=inputs, tokenizer=tokenizer)

    def check_sources(self, names: Sequence[str], samples: Sequence[Samples]) -> None:
        """See `Objective`: each tag has a word."""
        rows = [one for one in samples if isinstance(one, TaggingSamples)]
        files = [one.dataset.path(one.split) for one in rows]
        check_classes(self.labels, np.concatenate([one.present for one in rows]), files)


@dataclass(frozen=True, kw_only=True)
class TaggingRecipe(FormatRecipe):
    """Texts of words, joined by spaces. What does not fit a row is cut off, and its words have no position."""

    objective: Tagging

    def make_samples(self, dataset: LabelledDataset, split: LabelledSplit) -> TaggingSamples:
        """Raises DataError with file and line for a row whose words or tags are missing, unknown or don't fit."""
        objective, present = self.objective, set[int]()
        for number, row in enumerate(dataset.rows(split)):
            words = dataset.field(split, number, row, objective.words)
            tags = dataset.field(split, number, row, objective.tags)
            for name, values in ((objective.words, words), (objective.tags, tags)):
                if not isinstance(values, list) or not values:
                    raise dataset.error(split, number, f"the field {name!r} is not a list of one or more texts.")
            if len(words) != len(tags):
                raise dataset.error(
                    split, number, f"there are {len(tags)} tags for {len(words)} words; give each word one."
                )
            for position, word in enumerate(words):
                dataset.check_text(split, number, word, f"the word {position}")
            present |= {class_id(dataset, split, number, tag, objective.labels) for tag in tags}
        return TaggingSamples(dataset, split, self, np.array(sorted(present), np.int64))

    def join_words(self, words: Sequence[str]) -> tuple[JoinedTexts, Ids]:
        """(the input of a text, [words] the position of the first token of each word; -1 where it has none: where the
        tokenizer makes no token of a word, or the text is cut off before it)."""
        pieces = self.encode(spaced(words))
        sizes = np.array([len(piece) for piece in pieces], np.int64)
        joined = self.inputs.join([np.concatenate(pieces)])
        positions = joined.starts[0] + np.cumsum(sizes) - sizes
        kept = joined.starts[0] + self.inputs.max_text_tokens(1)
        return joined, np.where((sizes > 0) & (positions < kept), positions, _NO_POSITION)


def spaced(words: Sequence[str]) -> list[str]:
    """Words as the text has them: all but the first with a space before it."""
    return [word if number == 0 else f" {word}" for number, word in enumerate(words)]


@dataclass(frozen=True)
class TaggingSamples(RowSamples):
    """The rows of a split, one sample each."""

    recipe: TaggingRecipe
    present: Ids
    """Class ids of the tags that occur, ascending."""

    def are_cut(self, rows: Sequence[Row]) -> NDArray[np.bool_]:
        """See `RowSamples`."""
        recipe = self.recipe
        texts = [spaced(row[recipe.objective.words]) for row in rows]
        sizes = recipe.sizes([word for words in texts for word in words])
        row_sizes = np.add.reduceat(sizes, np.cumsum([0, *map(len, texts[:-1])]))
        cut: NDArray[np.bool_] = row_sizes > recipe.inputs.max_text_tokens(1)
        return cut

    def rows(self, seed: int, ids: Ids) -> Rows:
        """See `Samples`: nothing about them is drawn."""
        inputs, rows = self.recipe.inputs, self._read(ids)
        joined, labels = [], np.zeros((len(ids), inputs.label_length), np.int64)
        mask = np.zeros(labels.shape, np.float32)
        for number, row in enumerate(rows):
            text, positions = self.recipe.join_words(row[self.recipe.objective.words])
            has_position = positions >= 0
            labels[number, positions[has_position]] = self._tags(row)[has_position]
            mask[number, positions[has_position]] = 1
            joined.append(text)
        return Rows(**inputs.columns(joined), labels=labels, loss_mask=mask)

    def tags(self, number: int) -> Ids:
        """[words] the class id of each word's tag in the sample `number`."""
        return self._tags(self.dataset.row(self.split, number))

    def word_positions(self, number: int) -> Ids:
        """[words] the position whose label is each word's tag; -1: a word without one (see `TaggingRecipe.join_words`),
        which a model can't tag."""
        words = self.dataset.row(self.split, number)[self.recipe.objective.words]
        return self.recipe.join_words(words)[1]

    def _tags(self, row: Row) -> Ids:
        objective = self.recipe.objective
        tags: list[Any] = row[objective.tags]
        return np.array([objective.labels.index(tag) for tag in tags], np.int64)
