"""`pretrain data trace RUN --step N [--text] [--json]`: the documents of one step's global batch."""

import json
from pathlib import Path
from typing import Any

from pretrain.commands.arguments import Parser
from pretrain.commands.output import print_lines
from pretrain.data.consumed import ConsumedSamples, config_of_run
from pretrain.data.stream import open_stream
from pretrain.data.trace import trace_samples
from pretrain.run_dir.records import read_metrics


def main(argv: list[str]) -> int:
    """Prints the samples of a step and their documents. Raises ConfigError where the run has no such step, RunError
    where its data is not what the step was trained on; DataError where it can't be read."""
    parser = Parser("data trace", "Shows the documents of one step's global batch.", ("runs/book --step 17 --text",))
    parser.add_argument("run", type=Path, help="Run directory.")
    parser.add_argument("--step", type=int, required=True, help="Optimizer step, counting from 1.")
    parser.add_argument(
        "--text", action="store_true", help="Show the beginning of what the sample holds of each document."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON Lines, one object per sample.")
    options = parser.parse(argv)
    config = config_of_run(options.run)
    stream, _ = open_stream(config)
    start, ids = ConsumedSamples(options.run, read_metrics(options.run), stream).ids(options.step)
    part, _ = stream.locate(start, len(ids))
    names = [source.called for source in config.data.resolved_sources]
    found = trace_samples(part, ids, names, options.text)
    print_lines(json.dumps(sample) if options.json else shown(sample) for sample in found)
    return 0


def shown(sample: dict[str, Any]) -> str:
    """A sample as lines."""
    unit = "rows" if any("rows" in span for span in sample["spans"]) else "tokens"
    spans = ", ".join(f"{span['start']:,}..{span['start'] + span[unit] - 1:,}" for span in sample["spans"])
    lines = [
        f"row {sample['row']}  {sample['source']}  epoch {sample['epoch']}  sample {sample['sample']:,}  {unit} {spans}"
    ]
    for document in sample["documents"]:
        lines.append(
            f"    {document['file']}:{document['index']}{f' part {part}' if (part := document['part']) else ''}  "
            f"{document['bytes']:,} bytes"
            + ("" if unit == "rows" else f"  {document['tokens']:,} of its {document['of_tokens']:,} tokens")
        )
        if "text" in document:
            lines.append(f"        {document['text']!r}")
    return "\n".join(lines)
