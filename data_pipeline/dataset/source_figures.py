"""Figures of a dataset's text for its tokenizer, and for the mix that it is a source of: of many languages, each one's
share and fertility (tokens per word, character and byte)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.mix import MIX_MANIFEST, MixManifest
from data_pipeline.dataset.unknown_tokens import unknown_share_of

_HEAD = ("weight", "tokens", "of all", "per word", "per char", "per byte", "unknown")
_WIDTHS = (9, 14, 9, 10, 10, 10, 9)


@dataclass(frozen=True, kw_only=True)
class SourceFigures:
    """One source's training split."""

    name: str
    weight: float
    """its share of a run's samples, by the weights of the mix"""
    share: float
    """its share of the tokens"""
    tokens: int
    """with begins and ends of documents"""
    text_tokens: int
    """without them"""
    text_bytes: int
    characters: int | None
    """None: the build was of a version that did not count them"""
    unicode_words: int | None
    """None: as for `characters`"""
    unknown: float | None
    """share of unknown tokens; None: the tokenizer has none"""

    @property
    def tokens_per_word(self) -> float | None:
        """A word is one of the writing of any language."""
        return self.text_tokens / self.unicode_words if self.unicode_words else None

    @property
    def tokens_per_character(self) -> float | None:
        """A character is a code point."""
        return self.text_tokens / self.characters if self.characters else None

    @property
    def tokens_per_byte(self) -> float | None:
        """None: it has no text."""
        return self.text_tokens / self.text_bytes if self.text_bytes else None


def mix_of(address: Path | str) -> dict[str, tuple[Dataset, float]]:
    """The datasets in a mix's directory by their names, with their weights; a plain dataset's name is empty, and its
    address may be remote."""
    if not os.path.isfile(Path(address) / MIX_MANIFEST):  # also of a name that no file can have
        return {"": (Dataset(address), 1.0)}
    sources = MixManifest.load(Path(address)).sources
    return {source.name: (Dataset(Path(address) / source.name), source.weight) for source in sources}


def source_figures(mix: Mapping[str, tuple[Dataset, float]]) -> list[SourceFigures]:
    """The figures of each source of what `mix_of` gives."""
    tokens = sum(dataset.num_tokens("train") for dataset, _ in mix.values())
    weights = sum(weight for _, weight in mix.values())
    return [_figures(name, dataset, weight / weights, tokens) for name, (dataset, weight) in mix.items()]


def _figures(name: str, dataset: Dataset, weight: float, total: int) -> SourceFigures:
    manifest = dataset.manifest
    split = manifest.splits["train"]
    of_document = 1 + manifest.pairs + (manifest.begin_of_text is not None)
    return SourceFigures(
        name=name,
        weight=weight,
        share=split.tokens / total,
        tokens=split.tokens,
        text_tokens=split.tokens - of_document * split.documents,
        text_bytes=split.text_bytes,
        characters=split.characters,
        unicode_words=split.unicode_words,
        unknown=unknown_share_of(dataset),
    )


def figures_table(sources: Sequence[SourceFigures]) -> str:
    """The figures as lines for a terminal; "-" for what is not known."""
    rows = [("source", *_HEAD), *((source.name, *_cells(source)) for source in sources)]
    width = max(len(name) for name, *_ in rows)
    return "\n".join(
        f"{name:<{width}}" + "".join(f"{cell:>{size}}" for cell, size in zip(cells, _WIDTHS, strict=True))
        for name, *cells in rows
    )


def _cells(source: SourceFigures) -> list[str]:
    rates = (source.tokens_per_word, source.tokens_per_character, source.tokens_per_byte)
    return [
        f"{source.weight:.2%}",
        f"{source.tokens:,}",
        f"{source.share:.2%}",
        *("-" if rate is None else f"{rate:.3f}" for rate in rates),
        "-" if source.unknown is None else f"{source.unknown:.2%}",
    ]
