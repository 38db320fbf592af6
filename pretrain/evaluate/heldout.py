"""Loss on the held-out stream, during training and after.

The stream is the validation split's documents, each with its begin of text where the dataset was built with one, and
its end of text, read as training reads: in windows of the model's length, one after the other, without regard for
document borders. Every token but the stream's first is predicted exactly once, begins and ends of text included. A
model with memory reads each window after the one before it, in one lane or several, and its memory is that of the text
so far. Packed rows (`objective.packing=best_fit`) are scored packed: every token but each document's first, from what
comes before it in its document. Objectives other than the causal one are scored on their training task, with the same
samples every time.

Of several sources each one's held-out text is scored, and the loss is the mean over the tokens of all: a source counts
by how much of it is held out, not by its weight in the mix. Of a limited number of samples each source has its part, by
how many it has.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.source import DataSource, LabelledSplit
from data_pipeline.heldout import heldout, num_heldout, reads_all, text_labels
from data_pipeline.recipes.base import Recipe
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.writing.folding import unspaced_letters
from pretrain.engine.base import Engine
from pretrain.process import watchdog

_LARGEST_EXPONENT = math.log(sys.float_info.max)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Sums over the windows that were scored."""

    loss_sum: float
    """sum of token losses, nats"""
    token_count: int
    """tokens predicted"""
    words: int | None
    """whitespace-separated words of the text; None: only a part of the split was scored (`count_text` counts it)"""
    text_bytes: int | None
    """UTF-8 bytes of the text; None: as for `words`"""
    characters: int | None = None
    """characters (code points) of the text; None: as for `words`, or not counted yet (`count_text`)"""
    unspaced_share: float | None = None
    """share of the text's letters that are of scripts without spaces between words; None: as for `characters`"""
    terms: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """sum and count of each further term of the loss, by the name of the term"""
    by_source: Sequence[tuple[float, int]] = ()
    """loss_sum and token_count of each source"""
    bytes_by_source: Sequence[float | None] = ()
    """UTF-8 bytes of the text that was predicted of each source: the manifest's of whole splits, else the tokens of
    text that were predicted, at the split's mean bytes of a token; None: labels are no tokens of a text"""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.loss_sum / self.token_count

    @property
    def perplexity(self) -> float | None:
        """Per token: comparable only between models of one tokenizer."""
        return exp(self.loss)

    @property
    def word_perplexity(self) -> float | None:
        """Per word of the text, ends of text included in the loss: comparable between tokenizers. None: not counted."""
        return exp(self.loss_sum / self.words) if self.words else None

    @property
    def character_perplexity(self) -> float | None:
        """Per character of the text: comparable between tokenizers. None: not counted."""
        return exp(self.loss_sum / self.characters) if self.characters else None

    @property
    def bits_per_character(self) -> float | None:
        """log2 of `character_perplexity`."""
        return self.loss_sum / self.characters / math.log(2) if self.characters else None

    @property
    def byte_perplexity(self) -> float | None:
        """Per byte of the text: comparable between tokenizers. None: not counted."""
        return exp(self.loss_sum / self.text_bytes) if self.text_bytes else None

    @property
    def bits_per_byte(self) -> float | None:
        """log2 of `byte_perplexity`."""
        return self.loss_sum / self.text_bytes / math.log(2) if self.text_bytes else None

    @property
    def bits_per_byte_by_source(self) -> Sequence[float | None]:
        """The loss of each source in bits per byte of the text predicted: comparable between tokenizers, for one
        objective."""
        return [
            loss / size / math.log(2) if size else None
            for (loss, _), size in zip(self.by_source, self.bytes_by_source, strict=False)
        ]


def exp(nats: float) -> float | None:
    """e to the power of `nats`; None when no float is that large (the words of a language without spaces are long)."""
    return math.exp(nats) if nats < _LARGEST_EXPONENT else None


def heldout_loss(
    engine: Engine,
    dataset: DataSource | Sequence[DataSource],
    recipe: Recipe | int,
    sequences: int | None = None,
    rank_rows: int = 8,
    *,
    split: LabelledSplit = "validation",
    lanes: int = 0,
) -> HeldOut:
    """Scores all samples that `recipe` (a number: windows of that length) makes of the held-out split of a dataset, or
    of those of several sources; or some `sequences` of them, each source's first: the same ones on any layout. Of
    labelled data, `split` may be another one. Raises DataError where there is none.

    `rank_rows` of them go to each data rank at a time; or one of each of `lanes`, of a model with memory. Collective
    over all ranks.
    """
    watchdog.kick("scoring held-out samples")
    datasets = dataset if isinstance(dataset, Sequence) else [dataset]
    by_source, terms = np.zeros((len(datasets), 3)), dict[str, np.ndarray]()
    rows = rank_rows * engine.data_world
    parts = _parts(datasets, recipe, sequences)
    for one, part, sums in zip(datasets, parts, by_source, strict=True):
        is_text = text_labels(one, recipe)
        for batch in heldout(
            one,
            recipe,
            rows,
            data_rank=engine.data_rank,
            data_world=engine.data_world,
            limit=part,
            split=split,
            lanes=lanes,
        ):
            scores = engine.score(batch)
            counted = batch.loss_mask > 0
            of_text = 0 if is_text is None else is_text[batch.labels[counted]].sum()
            sums += -scores.log_probability[counted].sum(dtype=np.float64), counted.sum(), of_text
            for name, term in scores.terms.items():
                terms[name] = terms.get(name, 0) + np.array([*term, 0])
    summed = engine.sum_over_data(np.stack([*by_source, *terms.values()])).tolist()
    return _held_out(datasets, recipe, summed, list(terms))


def _held_out(
    datasets: Sequence[DataSource], recipe: Recipe | int, summed: Sequence[tuple[float, float, float]], terms: list[str]
) -> HeldOut:
    """The sums of each source, and behind them those of `terms`: loss, labels, and labels that are tokens of a text."""
    pairs = [(value, int(count)) for value, count, _ in summed]
    each = pairs[: len(datasets)]
    token_count = sum(count for _, count in each)
    splits = [one.manifest.splits["validation"] for one in datasets if isinstance(one, Dataset)]
    all_scored = reads_all(recipe) and token_count == sum(split.tokens - 1 for split in splits)
    words = sum(split.words for split in splits) if all_scored else None
    text_bytes = sum(split.text_bytes for split in splits) if all_scored else None
    sizes = [
        None if text_labels(one, recipe) is None else _text_bytes(one, tokens, all_scored)
        for one, (_, _, tokens) in zip(datasets, summed, strict=False)
    ]
    of_terms = dict(zip(terms, pairs[len(datasets) :], strict=True))
    return HeldOut(
        loss_sum=sum(loss for loss, _ in each),
        token_count=token_count,
        words=words,
        text_bytes=text_bytes,
        terms=of_terms,
        by_source=each,
        bytes_by_source=sizes,
    )


def _text_bytes(dataset: DataSource, text_tokens: float, all_scored: bool) -> float:
    """Bytes of so many tokens of the held-out text."""
    assert isinstance(dataset, Dataset)
    split = dataset.manifest.splits["validation"]
    ends = len(dataset.manifest.boundary_tokens) * split.documents
    return split.text_bytes * (1.0 if all_scored else text_tokens / max(1, split.tokens - ends))


def _parts(datasets: Sequence[DataSource], recipe: Recipe | int, sequences: int | None) -> list[int | None]:
    """Number of samples that are scored of each source, at least one; None: all. One source's are not counted for
    that."""
    if sequences is None or len(datasets) == 1:
        return [sequences] * len(datasets)
    counts = [num_heldout(one, recipe) for one in datasets]
    return [max(1, min(count, sequences * count // max(1, sum(counts)))) for count in counts]


def count_text(scored: HeldOut, datasets: Sequence[Dataset], tokenizer: Tokenizer) -> HeldOut:
    """`scored` with the words, characters and bytes of the text it predicted: words and bytes are the manifest's for
    whole splits, all else is counted in the decoded text."""
    is_whole, sums = scored.words is not None, np.zeros((len(datasets), 5), np.int64)
    for dataset, (_, count), its_sums in zip(datasets, scored.by_source, sums, strict=True):
        first = 0 if is_whole else 1  # the manifest counts the text of the stream's first token, too
        tokens = dataset.window("validation", first, count + 1 - first)
        documents = np.split(tokens, np.flatnonzero(tokens == tokenizer.end_of_text))
        inner = (part[~np.isin(part, dataset.manifest.boundary_tokens[1:])] for part in documents)
        for text in map(tokenizer.decode, inner):
            its_sums += len(text.split()), len(text.encode()), len(text), *unspaced_letters(text)
    words, text_bytes, characters, unspaced, letters = sums.sum(axis=0).tolist()
    counted = replace(scored, characters=characters, unspaced_share=unspaced / max(1, letters))
    if is_whole:
        return counted
    return replace(counted, words=words, text_bytes=text_bytes, bytes_by_source=sums[:, 1].tolist())


def unigram_entropy(datasets: Sequence[Dataset]) -> float:
    """Entropy of the held-out tokens' own frequencies, nats per token: the best that any model without context could
    do on them, and so what a trained model must stay far below."""
    counts = np.zeros(datasets[0].manifest.tokenizer.vocabulary, np.int64)
    for dataset in datasets:
        tokens = dataset.window("validation", 0, dataset.num_tokens("validation"))
        counts += np.bincount(tokens, minlength=len(counts))
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
