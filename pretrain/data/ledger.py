"""Planned against realised: how much of each source a run reads. `pretrain data ledger RUN [--json]`.

What a run has consumed follows from how many samples it has seen, and is counted, not logged.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_pipeline.loader import ChainedStreams, Stream
from pretrain.config.schema import RunConfig
from pretrain.data.consumed import Consumed, config_of
from pretrain.data.stream import open_stream, planned_samples
from pretrain.plan.estimate import run_length
from pretrain.plan.ramp import short_samples, tokens_of

_COLUMNS = ("samples", "tokens", "epochs")


@dataclass(frozen=True)
class Entry:
    """One source after some number of samples of a run."""

    name: str
    path: str
    share: float
    """of the samples, by the weights that count there; 0 to 1"""
    samples: int
    tokens: int
    """that a model reads of it: samples times their length"""
    epochs: float
    """how often the source has been read"""


def entries(config: RunConfig, stream: Stream | ChainedStreams, samples: int) -> list[Entry]:
    """What the first `samples` samples of the run are of each source, and its share of the last of them."""
    shares, counts = stream.shares(max(0, samples - 1)), stream.counts(samples)
    tokens = config.model.sequence_length * counts
    if config.batch.short is not None:
        fewer = config.model.sequence_length - config.batch.short.sequence_length
        tokens = tokens - fewer * stream.counts(min(samples, short_samples(config)))
    epochs = stream.epochs(samples)
    return [
        Entry(source.called, source.path, shares[n], int(counts[n]), int(tokens[n]), float(epochs[n]))
        for n, source in enumerate(config.data.resolved_sources)
    ]


def planned(config: RunConfig, stream: Stream | ChainedStreams) -> list[Entry]:
    """The sources at the end of the run."""
    return entries(config, stream, planned_samples(config))


def summary(sources: Sequence[Entry]) -> str:
    """One line: of each source its part of all samples, their number, and how often it is read."""
    total = sum(source.samples for source in sources)
    return "; ".join(
        f"{source.name}: {source.samples / total:.1%}, {short(source.samples)} samples, {source.epochs:.2f} epochs"
        for source in sources
    )


def main(argv: Sequence[str]) -> int:
    """Prints the ledger of a run. Raises RunError where there is no run, or its data is not what it was
    trained on; DataError where that can't be read."""
    parser = argparse.ArgumentParser(
        prog="pretrain data ledger", allow_abbrev=False, description="Planned and realised samples of each source."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    config = config_of(options.run)
    stream, _ = open_stream(config)
    consumed = Consumed(options.run, stream)
    samples = consumed.samples
    steps, end_tokens = run_length(config)
    report = {
        "step": consumed.steps,
        "steps": steps,
        "tokens": tokens_of(config, samples),
        "end_tokens": end_tokens,
        "realised": [asdict(entry) for entry in entries(config, stream, samples)],
        "planned": [asdict(entry) for entry in planned(config, stream)],
    }
    print(json.dumps(report, indent=1) if options.json else table(report))
    return 0


def table(report: dict[str, Any]) -> str:
    """The ledger as lines: of each source what is read so far, and what is planned for the end of the run."""
    rows = list(zip(report["realised"], report["planned"], strict=True))
    width = max(8, *(len(now["name"]) for now, _ in rows))
    lines = [
        f"step {report['step']:,} of {report['steps']:,}, {report['tokens']:,} of {report['end_tokens']:,} tokens",
        f"{'source':<{width}}{'weight':>9}" + "".join(f"{name:>16}{'of':>16}" for name in _COLUMNS),
    ]
    for now, end in rows:
        numbers = [(f"{now[name]:,}", f"{end[name]:,}") for name in ("samples", "tokens")]
        numbers.append((f"{now['epochs']:.3f}", f"{end['epochs']:.3f}"))
        line = f"{now['name']:<{width}}{now['share']:>9.2%}"
        lines.append(line + "".join(f"{number:>16}" for pair in numbers for number in pair))
    return "\n".join(lines)


def short(count: int) -> str:
    """1234567 -> 1.2M."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)
