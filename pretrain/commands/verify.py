"""`pretrain verify CONFIG --layouts LIST|auto [--nproc N] [--steps N] [--full] [--out FILE] [key=value ...]`"""

import os
from pathlib import Path

from pretrain.commands.arguments import Parser, check_writable, count
from pretrain.commands.local_ranks import start_local_ranks, under_launcher
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.names import parse_layout, short_name
from pretrain.process.local import check_local_ranks
from pretrain.process.ranks import global_rank
from pretrain.process.signals import unblock

_AUTO_RANKS = 4  # ranks that `--layouts auto` fills by default


def main(argv: list[str]) -> int:
    """Returns 0 if every layout is the same run as one rank, 1 if not."""
    unblock()
    parser = _parser()
    options = parser.parse(argv)
    from pretrain.verify.jobs import layouts_that_fit, plan, resolve_config

    check_writable(options.out)
    config = resolve_config(load(RunConfig, options.config, options.overrides), options.full)
    if options.nproc is not None and (under_launcher() or options.layouts != "auto"):
        raise ConfigError("--nproc is how many local ranks auto fills: leave it out here")
    started = int(os.environ.get("WORLD_SIZE", "0"))
    if options.layouts == "auto":
        check_local_ranks(options.nproc or 1)
        layouts, unfit = layouts_that_fit(config, started or options.nproc or _AUTO_RANKS, options.full)
        # Printed once: by rank 0, if ranks are there already, or need not be started.
        if unfit and global_rank() == 0 and (under_launcher() or unfit[0].world == 1):
            print(f"not run, as this config cannot: {', '.join(map(short_name, unfit))}")
    else:
        zero = config.parallel.zero, config.parallel.zero_engine
        layouts = [parse_layout(text, *zero) for text in options.layouts.split(",")]
    needed = max(layout.world for layout in layouts)
    if started and started < needed:
        raise ConfigError(f"the layouts need {needed:,} ranks and the launcher has started {started}")
    if not started:
        check_local_ranks(needed)
    jobs = plan(config, layouts, options.full)
    if needed > 1 and not started:
        return start_local_ranks(needed, ["verify", *argv], None)
    from pretrain.checkpoint.identity import rank_fingerprint
    from pretrain.data.resolve import open_datasets
    from pretrain.engine import rendezvous
    from pretrain.verify.report import Table
    from pretrain.verify.run import Verification

    facts = {"--layouts": [str(layout) for layout in layouts], "--steps": options.steps, "--full": options.full}
    store, rank, _ = rendezvous.rendezvous(config.health, rank_fingerprint(config, open_datasets(config)) | facts)
    verification = Verification(store, rank, max(1, started), options.steps)
    if rank != 0:
        return 0 if verification.run(jobs, lambda row: None, lambda check: None) else 1
    table = Table(options.out, options.steps, jobs)
    return 0 if verification.run(jobs, table.add, table.add_scoring) else 1


def _parser() -> Parser:
    parser = Parser(
        "verify",
        "Trains the same few steps on one rank and on each layout, and compares every gradient and weight. "
        "Exits with 1 if a layout differs.",
        ("debug/gpt --layouts tp2,pp2,tp2pp2dp2+sp+vp2", "debug/gpt --layouts auto --nproc 4"),
    )
    parser.add_config("Its data is used if it names any.")
    parser.add_argument(
        "--layouts",
        required=True,
        metavar="A,B,...",
        help="Layouts separated by commas, such as tp2,pp2,tp2pp2dp2+sp+vp2+zero1; auto: one of every kind.",
    )
    parser.add_nproc("Local ranks that auto fills (default 4); other layouts start as many as they need.")
    parser.add_argument("--steps", type=count, default=4, help="Optimizer steps to compare (default 4).")
    parser.add_argument(
        "--full",
        action="store_true",
        help="Keep the config's sizes, which must fit on one rank in fp32 (default: shrink the model).",
    )
    parser.add_argument("--out", type=Path, default=Path("verify.json"), help="JSON report (default verify.json).")
    return parser
