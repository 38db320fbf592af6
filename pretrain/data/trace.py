"""The documents that a step was trained on, so that a spike of the loss can be read."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.dataset import DocumentSpan
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.dataset.source import DataSource
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.loader import SampleStream
from data_pipeline.tokenizers.base import Tokenizer

_TEXT_CHARACTERS = 100


def trace_samples(
    stream: SampleStream, ids: NDArray[np.int64], names: Sequence[str], text: bool
) -> Iterator[dict[str, Any]]:
    """Yields for each sample of `ids` [rows, 3] (source, epoch, number): its index in the batch, its spans in the
    source's training split (from `start` on so many `tokens`, or of labelled data so many `rows`), and the documents in
    these spans; with `text`, also the first text of each document that the span holds."""
    tokenizers = [dataset.tokenizer() if text else None for dataset in stream.datasets]
    every = stream.token_spans(ids)
    for row, (source, epoch, number) in enumerate(ids.tolist()):
        dataset = stream.datasets[source]
        spans, unit = every[every[:, 0] == row, 1:].tolist(), _unit(dataset)
        yield {
            "row": row,
            "source": names[source],
            "epoch": epoch,
            "sample": number,
            "spans": [{"start": start, unit: count} for start, count in spans],
            "documents": [
                _document(dataset, stream.split, span, start=start, count=count, tokenizer=tokenizers[source])
                for start, count in spans
                for span in dataset.documents_at(stream.split, start, count)
            ],
        }


def trace_documents(stream: SampleStream, ids: NDArray[np.int64], names: Sequence[str]) -> list[dict[str, Any]]:
    """Lists the documents of a batch, each once: `source`, `file`, `index`, `part`, and the `tokens` of it that
    the batch has, the most first; of labelled data, how many `rows`."""
    units = {name: _unit(dataset) for name, dataset in zip(names, stream.datasets, strict=True)}
    counts: Counter[tuple[str, str, int, int]] = Counter()
    for sample in trace_samples(stream, ids, names, text=False):
        for document in sample["documents"]:
            key = sample["source"], document["file"], document["index"], document["part"]
            counts[key] += document[units[sample["source"]]]
    columns = ("source", "file", "index", "part")
    return [dict(zip(columns, key, strict=True)) | {units[key[0]]: count} for key, count in counts.most_common()]


def _unit(dataset: DataSource) -> str:
    return "rows" if isinstance(dataset, LabelledDataset) else "tokens"


def _document(
    dataset: DataSource, split: SplitName, span: DocumentSpan, *, start: int, count: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    first, end = max(start, span.start), min(start + count, span.start + span.tokens)
    unit = _unit(dataset)
    entry = {
        "file": span.record["source"],
        "index": span.record["index"],
        "part": span.record.get("part", 0),
        "bytes": span.record["bytes"],
        "start": first,
        unit: end - first,
        f"of_{unit}": span.tokens,
    }
    if tokenizer is not None:
        entry["text"] = dataset.excerpt(split, first, end - first, tokenizer)[:_TEXT_CHARACTERS]
    return entry
