"""`pretrain verify CONFIG --layouts LIST|auto [--nproc N] [--steps N] [--full] [--out FILE] [key=value ...]`"""

import os
from argparse import Namespace
from pathlib import Path

from pretrain.commands.arguments import Parser, check_writable, count
from pretrain.commands.local_ranks import start_ranks, under_launcher
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.layout.names import layouts_to_verify, parse_layout, short_name
from pretrain.process.local import check_room
from pretrain.process.ranks import global_rank
from pretrain.process.signals import unblock

_AUTO_RANKS = 4  # ranks that `--layouts auto` fills by default


def main(argv: list[str]) -> int:
    """Returns 0 if every layout is the same run as one rank, 1 if not."""
    unblock()
    parser = Parser(
        "verify",
        "Trains the same few steps on one rank and on each layout, and compares every gradient and weight.",
        ("debug/gpt --layouts tp2,pp2,tp2pp2dp2+sp+vp2", "debug/gpt --layouts auto --nproc 4"),
    )
    parser.add_config("YAML file; its data is used if it names any")
    parser.add_argument(
        "--layouts",
        required=True,
        help="layouts separated by commas, such as tp2,pp2,tp2pp2dp2+sp+vp2+zero1; auto: one of every kind",
    )
    parser.add_nproc("local ranks that auto fills (default: 4); other layouts start as many as they need")
    parser.add_argument("--steps", type=count, default=4, help="optimizer steps to compare (default 4)")
    parser.add_argument(
        "--full",
        action="store_true",
        help="keep the config's sizes, which must fit on one rank in fp32; otherwise the model is shrunk",
    )
    parser.add_argument("--out", type=Path, default=Path("verify.json"), help="JSON report (default verify.json)")
    options = parser.parse(argv)
    from pretrain.verify.jobs import plan

    check_writable(options.out)
    config = _config(options)
    layouts = _layouts(options, config)
    needed, started = max(layout.world for layout in layouts), int(os.environ.get("WORLD_SIZE", "0"))
    if started and started < needed:
        raise ConfigError(f"the layouts need {needed:,} ranks and the launcher has started {started}")
    if not started:
        check_room(needed)
    jobs = plan(config, layouts, options.full)
    if needed > 1 and not started:
        return start_ranks(needed, ["verify", *argv], None)
    from pretrain.checkpoint.identity import rank_fingerprint
    from pretrain.data.resolve import open_datasets
    from pretrain.engine import rendezvous
    from pretrain.verify.report import Table
    from pretrain.verify.run import Verification

    said = {"--layouts": [str(layout) for layout in layouts], "--steps": options.steps, "--full": options.full}
    store, rank, _ = rendezvous.rendezvous(config.health, rank_fingerprint(config, open_datasets(config)) | said)
    verification = Verification(store, rank, max(1, started), options.steps)
    if rank != 0:
        return 0 if verification.run(jobs, lambda row: None, lambda check: None) else 1
    table = Table(options.out, options.steps, jobs)
    return 0 if verification.run(jobs, table.add, table.add_scoring) else 1


def _config(options: Namespace) -> RunConfig:
    config = load(RunConfig, options.config, options.overrides)
    if config.data.resolved_sources:
        from pretrain.data.resolve import resolve

        return resolve(config)
    if options.full and config.model.vocabulary is None:
        raise ConfigError("--full keeps the vocabulary, and the config has none: set data.path or model.vocabulary")
    return config


def _layouts(options: Namespace, config: RunConfig) -> list[Layout]:
    from pretrain.verify.jobs import fits

    if options.nproc is not None and (under_launcher() or options.layouts != "auto"):
        raise ConfigError("--nproc is how many local ranks auto fills: leave it out here")
    if options.layouts != "auto":
        return [
            parse_layout(text, config.parallel.zero, config.parallel.zero_engine) for text in options.layouts.split(",")
        ]
    check_room(options.nproc or 1)
    every = layouts_to_verify(int(os.environ.get("WORLD_SIZE", "0")) or options.nproc or _AUTO_RANKS)
    found = [layout for layout in every if fits(config, layout, options.full)]
    if not found:
        hint = " as it is: leave out --full" if options.full else ": name one with --layouts to see why"
        raise ConfigError(f"this config runs on no layout of {every[0].world} ranks{hint}")
    # Said once: by rank 0, if ranks are there already, or need not be started.
    if len(found) < len(every) and global_rank() == 0 and (under_launcher() or every[0].world == 1):
        left_out = ", ".join(short_name(layout) for layout in every if layout not in found)
        print(f"not run, as this config cannot: {left_out}")
    return found
