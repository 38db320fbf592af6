"""Notes of a run on words and sentences of its text: too many or few tokens are masked, or texts have no sentences."""

from collections.abc import Iterator, Sequence

import numpy as np

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.source import DataSource
from data_pipeline.recipes.characters import CharacterSpans, CharacterSpansRecipe
from data_pipeline.recipes.masked import Masked, MaskedRecipe
from data_pipeline.recipes.objective import BoundedObjective
from pretrain.config.run_config import RunConfig

_ROWS, _DOCUMENTS = 64, 128
"""rows and documents of each dataset that are looked at"""
_FAR = 1.25
"""times as much, or as little, as was asked for"""
_MANY = 0.2
"""share of documents without an end that is said"""


def warnings_of_writing(config: RunConfig, datasets: Sequence[DataSource]) -> tuple[str, ...]:
    """Warnings of the tokenized datasets of a run, whose first rows and documents are read for it."""
    found = list[str]()
    for dataset, source in zip(datasets, config.data.resolved_sources, strict=True):
        objective = source.objective or config.objective
        if isinstance(dataset, Dataset) and isinstance(objective, BoundedObjective) and objective.needs_boundaries:
            if isinstance(objective, CharacterSpans) or (
                isinstance(objective, Masked) and (objective.whole_words or objective.units is not None)
            ):
                found += _mask_notes(config, dataset, objective)
            if objective.needs_sentences:
                found += _sentence_notes(config, dataset, objective)
    return tuple(found)


def _mask_notes(config: RunConfig, dataset: Dataset, objective: Masked | CharacterSpans) -> Iterator[str]:
    recipe = objective.recipe(dataset.tokenizer(), config.sequence_length)
    samples = recipe.samples(dataset, "train")
    numbers = np.arange(min(_ROWS, samples.count))
    rows = samples.rows(config.run.seed, np.stack([0 * numbers, 0 * numbers, numbers], axis=1))
    if isinstance(recipe, CharacterSpansRecipe):
        is_text = recipe.is_text(rows.tokens) | (rows.tokens == recipe.specials.mask)
    else:
        assert isinstance(recipe, MaskedRecipe), "it is that of the objective"
        is_text = ~recipe.known.is_special[rows.labels]
    if rows.attention_mask is not None:
        is_text &= rows.attention_mask > 0
    num_text = max(1, int(is_text.sum()))
    share, asked = float(rows.loss_mask.sum() / num_text), objective.noise_density
    most = len(numbers) * recipe.target_length / num_text  # which objective.max_predictions may lower
    if not min(asked, most) / _FAR <= share <= asked * _FAR:
        yield (
            f"{share:.1%} of the tokens in the first {len(numbers)} rows of {dataset.address} are masked, and "
            f"objective.noise_density={asked:g} asks for {asked:.1%}: its words or units are too long, or too few, to "
            "mask as a whole"
        )


def _sentence_notes(config: RunConfig, dataset: Dataset, objective: BoundedObjective) -> Iterator[str]:
    known = objective.vocabulary(dataset.tokenizer())
    starts = dataset.starts("train")
    ends = np.append(starts[1:], dataset.num_tokens("train"))[:_DOCUMENTS]
    lengths = np.minimum(ends - starts[:_DOCUMENTS] - 1, config.sequence_length)
    texts = [
        dataset.window("train", int(start), int(length))
        for start, length in zip(starts[:_DOCUMENTS], lengths, strict=True)
        if length > 1
    ]
    without = sum(not known.sentence_ends(text)[:-1].any() for text in texts)
    if texts and without > _MANY * len(texts):
        yield (
            f"{without:,} of the first {len(texts):,} documents of {dataset.address} have no end of a sentence within "
            f"{config.sequence_length} tokens, and objective.name={objective.name} is about sentences: what it does "
            "with these is to cut them at random, or nothing"
        )
