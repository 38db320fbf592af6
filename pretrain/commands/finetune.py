"""`pretrain finetune CHECKPOINT_OR_RUN CONFIG [key=value ...] [--nproc N] [--seeds N,N,...]`, and `finetune fetch`"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.commands.arguments import Parser, numbers
from pretrain.commands.verbs import command_below
from pretrain.process.signals import StopRequest
from pretrain.process.streams import print_a_log

if TYPE_CHECKING:
    from pretrain.config.run_config import RunConfig


def main(argv: list[str]) -> int:
    """Fine-tunes a checkpoint to the end of the run, or until a signal asks to stop."""
    if (below := command_below("finetune", argv)) is not None:
        return below(argv[1:])
    stop = StopRequest()  # before the slow imports
    options = finetune_parser().parse(argv)
    print_a_log()
    from pretrain.checkpoint.check_run_dir import check_run_dir
    from pretrain.commands.local_ranks import needs_local_ranks, start_local_ranks
    from pretrain.data.pointless_settings import check_new_run
    from pretrain.data.resolve import resolve
    from pretrain.observe.track import check_trackers

    config = config_of(options)
    check_trackers(config)
    if options.seeds:
        return _seeds(options.seeds, Path(config.run.dir), options.nproc, argv, stop)
    check_run_dir(Path(config.run.dir))
    config = resolve(config)
    check_new_run(config)
    if needs_local_ranks(config, options.nproc, trains=True):
        return start_local_ranks(options.nproc, ["finetune", *argv], stop)
    from pretrain.training.finetuned import train_and_report
    from pretrain.training.session import open_session

    with open_session(config, stop) as session:
        return train_and_report(session)


def finetune_parser() -> Parser:
    """Parser of the command."""
    parser = Parser(
        "finetune",
        "Trains a checkpoint further on labelled rows, and reports how it answers those that it has not seen. CONFIG "
        "is that of a run, without the model, which is the checkpoint's. It is `pretrain train CONFIG "
        "run.start_from=CHECKPOINT`, and resumes as that does. `pretrain finetune fetch` writes published data sets.",
        (
            "runs/bert finetune/classification data.path=data/sst2 'objective.labels=[0, 1]' run.dir=runs/sst2",
            "runs/bert finetune/classification data.path=data/sst2 'objective.labels=[0, 1]' run.dir=runs/sst2 \\\n"
            "    --seeds 1,2,3,4,5",
        ),
        resumes=True,
    )
    parser.add_checkpoint()
    parser.add_config("It says nothing of the model.")
    parser.add_nproc("Number of local ranks (default 1; omit under torchrun or srun).")
    parser.add_argument(
        "--seeds",
        type=numbers,
        help="Seeds of several runs, one after the other, in run.dir/seed-N each; prints median and spread.",
    )
    return parser


def config_of(options: Namespace) -> RunConfig:
    """Config of the run that options of `finetune_parser` ask for. Raises ConfigError."""
    from pretrain.config.load import load, read_with
    from pretrain.config.run_config import RunConfig

    _check_one_start(read_with(RunConfig, options.config, options.overrides), options.checkpoint)
    overrides = [*options.overrides, f"run.start_from={json.dumps(str(options.checkpoint))}"]
    return load(RunConfig, options.config, overrides)


def _check_one_start(tree: dict[str, Any], checkpoint: Path) -> None:
    """Raises ConfigError for a new run whose config, as it is written, names another start than `checkpoint`."""
    from pretrain.errors import ConfigError
    from pretrain.run_dir.paths import RunDir

    run = tree.get("run")
    given, run_dir = (run.get(key) if isinstance(run, dict) else None for key in ("start_from", "dir"))
    if given is None or Path(str(given)).expanduser().absolute() == checkpoint.absolute():
        return
    directory = Path(str(run_dir)).expanduser()
    if any(RunDir(path).has_begun for path in (directory, *directory.glob("seed-*"))):
        return  # with the checkpoint, as before
    raise ConfigError(
        f"run.start_from={given} and the checkpoint {checkpoint} both say what weights the run starts from: leave "
        "run.start_from out"
    )


def _seeds(seeds: list[int], run_dir: Path, nproc: int | None, argv: list[str], stop: StopRequest) -> int:
    """A run for each seed, one after the other; those that are finished only report. Then the spread of their
    figures."""
    from pretrain.commands.local_ranks import start_local_ranks, under_launcher
    from pretrain.commands.output import print_lines
    from pretrain.errors import ConfigError
    from pretrain.finetune.spread import read_spread, spread_lines

    if under_launcher():
        raise ConfigError("--seeds starts runs one after the other: leave it out under torchrun or srun, and start one "
                          "run for each seed (run.seed, run.dir)")  # fmt: skip
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds names a seed twice: {','.join(map(str, seeds))}")
    arguments = _without_seeds(argv)
    directories = [run_dir / f"seed-{seed}" for seed in seeds]
    for seed, directory in zip(seeds, directories, strict=True):
        of_seed = [*arguments, f"run.dir={json.dumps(str(directory))}", f"run.seed={seed}"]
        status = start_local_ranks(nproc or 1, ["finetune", *of_seed], stop)
        if status:
            return status
    print_lines(spread_lines(read_spread(directories)))
    return 0


def _without_seeds(argv: list[str]) -> list[str]:
    for at, argument in enumerate(argv):
        if argument.split("=")[0] == "--seeds":
            return argv[:at] + argv[at + (1 if "=" in argument else 2) :]
    return argv
