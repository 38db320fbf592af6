"""The documents that a step was trained on, so that a spike of the loss can be read.

pretrain data trace RUN --step N [--text] [--json]
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.dataset import Dataset, DocumentSpan
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.loader import Stream
from data_pipeline.tokenizers.base import Tokenizer
from pretrain.data.consumed import Consumed, config_of
from pretrain.data.stream import open_stream

_TEXT_TOKENS, _TEXT_CHARACTERS = 64, 100


def main(argv: Sequence[str]) -> int:
    """Prints the samples of a step and their documents. Raises RunError where the run has no such step, or its data is
    not what the step was trained on; DataError where it can't be read."""
    parser = argparse.ArgumentParser(
        prog="pretrain data trace", allow_abbrev=False, description="The documents of one step's global batch."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--step", type=int, required=True, help="optimizer step, from 1")
    parser.add_argument("--text", action="store_true", help="show the first characters of each document in the sample")
    parser.add_argument("--json", action="store_true", help="print JSON, a line for each sample")
    options = parser.parse_args(argv)
    config = config_of(options.run)
    stream, _ = open_stream(config)
    start, ids = Consumed(options.run, stream).ids(options.step)
    part, _ = stream.part(start, len(ids))
    names = [source.called for source in config.data.resolved_sources]
    try:
        for sample in samples(part, ids, names, options.text):
            print(json.dumps(sample) if options.json else shown(sample))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def samples(stream: Stream, ids: NDArray[np.int64], names: Sequence[str], text: bool) -> Iterator[dict[str, Any]]:
    """Of each sample of `ids` [rows, 3] (source, epoch, number): its index in the batch, its spans of the source's
    training split, and the documents that these cut, with the beginning of what they cut if `text`."""
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
            "stretches": [{"start": start, "tokens": tokens} for start, tokens in spans],
            "documents": [
                _document(dataset, stream.split, span, start, tokens, tokenizers[source])
                for start, tokens in spans
                for span in dataset.documents_at(stream.split, start, tokens)
            ],
        }


def _document(
    dataset: Dataset, split: SplitName, span: DocumentSpan, start: int, tokens: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    first, end = max(start, span.start), min(start + tokens, span.start + span.tokens)
    found = {
        "file": span.record["source"],
        "index": span.record["index"],
        "part": span.record.get("part", 0),
        "bytes": span.record["bytes"],
        "start": first,
        "tokens": end - first,
        "of_tokens": span.tokens,
    }
    if tokenizer is not None:
        ids = dataset.window(split, first, min(end - first, _TEXT_TOKENS))
        found["text"] = tokenizer.decode(ids[ids != tokenizer.end_of_text])[:_TEXT_CHARACTERS]
    return found


def shown(sample: dict[str, Any]) -> str:
    """A sample as lines."""
    places = ", ".join(f"{s['start']:,}..{s['start'] + s['tokens'] - 1:,}" for s in sample["stretches"])
    lines = [
        f"row {sample['row']}  {sample['source']}  epoch {sample['epoch']}  sample {sample['sample']:,}  "
        f"tokens {places}"
    ]
    for document in sample["documents"]:
        lines.append(
            f"    {document['file']}:{document['index']}{f' part {part}' if (part := document['part']) else ''}  "
            f"{document['bytes']:,} bytes  "
            f"{document['tokens']:,} of its {document['of_tokens']:,} tokens"
        )
        if "text" in document:
            lines.append(f"        {document['text']!r}")
    return "\n".join(lines)
