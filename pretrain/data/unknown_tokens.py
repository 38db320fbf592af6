"""Warnings of data of which the tokenizer can spell too little."""

from collections.abc import Sequence

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.source import DataSource
from data_pipeline.dataset.unknown_tokens import MANY, WAY_OUT, unknown_share_of


def warnings_of_unknown(datasets: Sequence[DataSource]) -> tuple[str, ...]:
    """One for each dataset of a run with many unknown tokens. Labelled rows are encoded while they are read, and not
    counted."""
    shares = [(one.address, unknown_share_of(one)) for one in datasets if isinstance(one, Dataset)]
    return tuple(
        f"{share:.1%} of the tokens of {address} are unknown to its tokenizer, and a model learns nothing of them: "
        f"{WAY_OUT}, and build the data again"
        for address, share in shares
        if share is not None and share > MANY
    )
