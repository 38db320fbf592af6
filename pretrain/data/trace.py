"""The documents that a step was trained on, so that a spike of the loss can be read."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.dataset import DocumentSpan
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.dataset.source import DataSource
from data_pipeline.loader import SampleStream
from data_pipeline.tokenizers.base import Tokenizer

_TEXT_CHARACTERS = 100


def trace_samples(
    stream: SampleStream, ids: NDArray[np.int64], names: Sequence[str], text: bool
) -> Iterator[dict[str, Any]]:
    """Yields for each sample of `ids` [rows, 3] (source, epoch, number): its index in the batch, its spans in the
    source's training split, and the documents in these spans; with `text`, also the first text of each document that
    the span holds."""
    tokenizers = [dataset.tokenizer() if text else None for dataset in stream.datasets]
    every = stream.token_spans(ids)
    for row, (source, epoch, number) in enumerate(ids.tolist()):
        dataset = stream.datasets[source]
        spans = every[every[:, 0] == row, 1:].tolist()
        yield {
            "row": row,
            "source": names[source],
            "epoch": epoch,
            "sample": number,
            "spans": [{"start": start, "tokens": tokens} for start, tokens in spans],
            "documents": [
                _document(dataset, stream.split, span, start=start, tokens=tokens, tokenizer=tokenizers[source])
                for start, tokens in spans
                for span in dataset.documents_at(stream.split, start, tokens)
            ],
        }


def trace_documents(stream: SampleStream, ids: NDArray[np.int64], names: Sequence[str]) -> list[dict[str, Any]]:
    """Lists the documents of a batch, each once: `source`, `file`, `index`, `part`, and the `tokens` of it that
    the batch has, the most first."""
    tokens: Counter[tuple[str, str, int, int]] = Counter()
    for sample in trace_samples(stream, ids, names, text=False):
        for document in sample["documents"]:
            tokens[sample["source"], document["file"], document["index"], document["part"]] += document["tokens"]
    columns = ("source", "file", "index", "part")
    return [dict(zip(columns, key, strict=True)) | {"tokens": count} for key, count in tokens.most_common()]


def _document(
    dataset: DataSource, split: SplitName, span: DocumentSpan, *, start: int, tokens: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    first, end = max(start, span.start), min(start + tokens, span.start + span.tokens)
    entry = {
        "file": span.record["source"],
        "index": span.record["index"],
        "part": span.record.get("part", 0),
        "bytes": span.record["bytes"],
        "start": first,
        "tokens": end - first,
        "of_tokens": span.tokens,
    }
    if tokenizer is not None:
        entry["text"] = dataset.excerpt(split, first, end - first, tokenizer)[:_TEXT_CHARACTERS]
    return entry
