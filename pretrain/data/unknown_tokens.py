"""Warnings of data of which the tokenizer can spell too little."""

from collections.abc import Iterator, Sequence
from typing import Any

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.source import DataSource
from data_pipeline.dataset.unknown_tokens import MANY, WAY_OUT, unknown_share_of
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.recipes.labelled import LabelledObjective
from pretrain.config.run_config import RunConfig

_ROWS = 64
"""labelled rows that are encoded to see"""
_ANSWERS = ("label", "tags")
"""settings of objectives that name a field which is no text"""


def warnings_of_unknown(datasets: Sequence[DataSource]) -> tuple[str, ...]:
    """One for each built dataset of a run with many unknown tokens."""
    shares = [(one.address, unknown_share_of(one)) for one in datasets if isinstance(one, Dataset)]
    return tuple(
        f"{share:.1%} of the tokens of {address} are unknown to its tokenizer, and a model learns nothing of them: "
        f"{WAY_OUT}, and build the data again"
        for address, share in shares
        if share is not None and share > MANY
    )


def warnings_of_unknown_rows(config: RunConfig, datasets: Sequence[DataSource]) -> tuple[str, ...]:
    """One for each dataset of labelled rows whose first ones have many unknown tokens."""
    found = list[str]()
    for dataset, source in zip(datasets, config.data.resolved_sources, strict=True):
        objective = source.objective or config.objective
        if isinstance(dataset, LabelledDataset) and isinstance(objective, LabelledObjective):
            share = _share_of_rows(dataset, objective)
            if share > MANY:
                found.append(
                    f"{share:.1%} of the tokens in the first {min(_ROWS, dataset.num_rows('train'))} rows of "
                    f"{dataset.address} are unknown to {dataset.tokenizer_path}, and a model learns nothing of them: "
                    "start from a model whose tokenizer knows their language"
                )
    return tuple(found)


def _share_of_rows(dataset: LabelledDataset, objective: LabelledObjective) -> float:
    """The share of unknown tokens in the texts of the first training rows; inputs by their own tokenizer, where there
    is one."""
    fields = objective.fields - {getattr(objective, key, None) for key in _ANSWERS}
    unknown = total = 0
    for number in range(min(_ROWS, dataset.num_rows("train"))):
        row = dataset.row("train", number)
        for name in fields & row.keys():
            of_inputs = name == getattr(objective, "input", None) and dataset.source_tokenizer
            tokenizer = of_inputs or dataset.tokenizer()
            if tokenizer.unknown is not None:
                for text in _texts(row[name]):
                    ids = tokenizer.encode(text)
                    unknown += ids.count(tokenizer.unknown)
                    total += len(ids)
    return unknown / max(1, total)


def _texts(value: Any) -> Iterator[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
