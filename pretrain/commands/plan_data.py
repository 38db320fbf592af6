"""`pretrain plan data CONFIG [key=value ...] --measure FILE`, or `--rates FILE --nodes N --cores C [--bytes X]`"""

import argparse
import json
import re
import tempfile
from dataclasses import asdict
from pathlib import Path

from pretrain.commands.arguments import Parser, check_writable, count

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_MOST_BYTES, _MOST_CORES = 1e21, 10**8
"""Upper limits: a million petabytes, and more cores than any cluster has."""


def main(argv: list[str]) -> int:
    """Measures a build of a sample, or prints what a build takes at measured rates. Raises DataError and
    ConfigError."""
    parser = Parser(
        "plan data",
        "Says what a build of a dataset takes: hours, core-hours by stage, chunks, shards and tasks. The rates are "
        "those of a build of a sample of your own, which --measure makes.",
        (
            "data/gpt3-mix input=sample/ --measure rates.yaml      # 100 MB or more: builds it and times each stage",
            "data/gpt3-mix --rates rates.yaml --nodes 100 --cores 64",
            "data/gpt3-mix --rates rates.yaml --nodes 100 --cores 64 --bytes 50TB",
        ),
    )
    parser.add_config(overrides="input=sample/", keys="pretrain keys --build")
    parser.add_argument(
        "--measure", type=Path, metavar="FILE", help="File for the measured rates: build the input once and store them."
    )
    parser.add_argument("--rates", type=Path, metavar="FILE", help="File of rates that --measure stored.")
    parser.add_argument("--nodes", type=count, help="Number of nodes.")
    parser.add_argument("--cores", type=count, help="Cores per node.")
    parser.add_argument(
        "--bytes",
        type=_bytes,
        metavar="X",
        help="Size of the input, such as 50TB (default: the size of the config's files).",
    )
    parser.add_argument("--json", action="store_true", help="Print all figures as JSON.")
    options = parser.parse(argv)
    if options.measure is not None:
        if any(value is not None for value in (options.rates, options.nodes, options.cores, options.bytes)):
            parser.error("--measure stores rates; plan with them in a command of its own")
        return _measure(options)
    if options.nodes is not None and options.cores is not None and options.nodes * options.cores > _MOST_CORES:
        parser.error(f"--nodes {options.nodes:,} of --cores {options.cores:,}: at most {_MOST_CORES:,} cores in all")
    if options.rates is None or options.nodes is None or options.cores is None:
        parser.error("--rates, --nodes and --cores are needed (or --measure FILE)")
    return _plan(options)


def _measure(options: argparse.Namespace) -> int:
    from data_pipeline.build.config import BuildConfig
    from data_pipeline.build.cost import measure
    from pretrain.config.load import dump, load

    out: Path = options.measure
    check_writable(out, "--measure")
    with tempfile.TemporaryDirectory(prefix="pretrain-measure-") as folder:
        output = [f"output={folder}/dataset"]  # whatever the config says
        rates = measure(load(BuildConfig, options.config, options.overrides + output), Path(folder))
    out.write_text(dump(rates))
    seconds = rates.processor_seconds
    print(f"{rates.input_bytes:,} bytes of input, {rates.tokens:,} tokens: {seconds:,.1f} processor-seconds")
    print(f"stored: {out}; plan with --rates {out}")
    return 0


def _plan(options: argparse.Namespace) -> int:
    from data_pipeline.build.config import BuildConfig
    from data_pipeline.build.cost import BuildRates, input_size, project
    from pretrain.config.load import load

    config = load(BuildConfig, options.config, options.overrides)
    rates = load(BuildRates, options.rates)
    size = options.bytes or input_size(config)
    cost = project(config, rates, size, options.nodes * options.cores)
    if options.json:
        print(json.dumps({**asdict(cost), "hours": cost.hours, "core_hours": cost.core_hours}, indent=2))
        return 0
    print(
        f"{size:,} bytes on {options.nodes:,} nodes of {options.cores:,} cores, by rates of {rates.input_bytes:,} bytes"
    )
    print(f"measured on {rates.machine}")
    width = max(len(stage.name) for stage in cost.stages)
    print(f"\n{'stage':<{width}}{'core-hours':>14}{'hours':>12}")
    for stage in cost.stages:
        print(f"{stage.name:<{width}}{stage.core_seconds / 3600:>14,.2f}{stage.seconds / 3600:>12,.3f}")
    print(f"{'in all':<{width}}{cost.core_hours:>14,.2f}{cost.hours:>12,.3f}\n")
    for name in ("tokens", "chunks", "shards", "members", "cells", "tasks"):
        print(f"{name:<{width}}{getattr(cost, name):>14,}")
    return 0


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGTP]?)B?", text)
    size = float(match[1]) * _UNITS[match[2]] if match is not None else 0.0
    if not 1 <= size <= _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, such as 50TB or 800GB")
    return round(size)
