"""`pretrain VERB ...` (or `python -m pretrain VERB ...`). A verb's modules are imported when it is called.

    pretrain data build configs/data/text.yaml input=book.txt output=datasets/book
    pretrain data ledger runs/debug-gpt
    pretrain data trace runs/debug-gpt --step 17 --text
    pretrain train configs/debug/gpt.yaml data.path=datasets/book --nproc 4
    pretrain eval runs/debug-gpt --tasks last_word,arithmetic_2da --shots 0,1,8 --out reports/debug-gpt
    pretrain verify configs/debug/gpt.yaml --layouts tp2,pp2,tp2pp2dp2+sp+vp2
    pretrain compare runs/debug-gpt runs/debug-gpt-again
    pretrain export runs/debug-gpt --to hf exported/debug-gpt
    pretrain import hf exported/debug-gpt --out runs/imported
    pretrain translate runs/debug-transformer test.jsonl --beam 4

Exit status: 0 done, 1 failed, 2 bad usage or config, 75 stopped by a signal after saving (start again to go on).
"""

import argparse
import os
import sys
import traceback
import warnings
from contextlib import nullcontext
from pathlib import Path

from data_pipeline.errors import DataError
from pretrain import ranks
from pretrain.config.schema import RunConfig
from pretrain.errors import ConfigError, RunError
from pretrain.stop import StopRequest, unblock

_AUTO_RANKS = 4  # that `verify --layouts auto` fills when nobody says how many


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit status. A user's mistake is one sentence on stderr, without a traceback."""
    arguments = sys.argv[1:] if argv is None else argv
    verbs = {
        "data": _data,
        "train": _train,
        "eval": _eval,
        "verify": _verify,
        "compare": _compare,
        "export": _export,
        "import": _import,
        "translate": _translate,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    if arguments[0] not in verbs:
        print(f"pretrain: unknown command '{arguments[0]}': known are {', '.join(verbs)}", file=sys.stderr)
        return 2
    try:
        ranks.adopt_srun()
        return verbs[arguments[0]](arguments[1:])
    except (ConfigError, DataError) as error:
        if _rank() == 0:  # every rank meets the same mistake
            print(f"pretrain: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        if _rank() == 0:
            print(f"pretrain: {error}", file=sys.stderr)
        return RunError.exit_status


def entry() -> None:
    """The console script."""
    try:
        status = main()
    except SystemExit as leaving:  # argparse has said what it wanted to say
        status = leaving.code if isinstance(leaving.code, int) else 2
    except KeyboardInterrupt:
        if _rank() == 0:
            print("pretrain: interrupted", file=sys.stderr)
        status = RunError.exit_status
    except BaseException:
        traceback.print_exc()
        status = RunError.exit_status
    _leave(status)


def _data(argv: list[str]) -> int:
    if argv[:1] == ["trace"]:
        from pretrain import trace

        return trace.main(argv[1:])
    if argv[:1] == ["ledger"]:
        from pretrain import ledger

        return ledger.main(argv[1:])
    from data_pipeline import cli
    from pretrain.config.load import load

    return cli.main(argv, load)


def _train(argv: list[str]) -> int:
    stop = StopRequest()
    parser = argparse.ArgumentParser(
        prog="pretrain train", allow_abbrev=False, description="Trains; resumes by itself from run.dir."
    )
    parser.add_argument("config", help="YAML file, such as configs/debug/gpt.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as data.path=datasets/book")
    parser.add_argument("--nproc", type=_count, help="start this many local ranks (under torchrun or srun: leave out)")
    options = parser.parse_intermixed_args(argv)
    from pretrain.config.load import load
    from pretrain.config.resolve import resolve

    config = resolve(load(RunConfig, options.config, options.overrides))
    if _spreads(config, options.nproc, trains=True):
        return _local(options.nproc, ["train", *argv], stop)
    _quiet()
    from pretrain.build import build_training
    from pretrain.checkpoint.lock import claim
    from pretrain.loop import train
    from pretrain.observe.log import RunLog

    run = build_training(config)
    lock = claim(Path(config.run.dir), run.engine.is_reporter)
    with RunLog(config, run.layout, run.engine.is_reporter) as log, lock or nullcontext():
        return train(run, log, stop)


def _eval(argv: list[str]) -> int:
    unblock()
    from pretrain.evaluate.tasks.registry import NAMES, check_names

    parser = argparse.ArgumentParser(
        prog="pretrain eval", allow_abbrev=False, description="Zero-, one- and few-shot report."
    )
    parser.add_argument("checkpoint", type=Path, help="a run (its newest valid checkpoint), or a checkpoint")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as parallel.tensor=2")
    parser.add_argument("--tasks", required=True, type=_names, help=f"comma-separated: {', '.join(NAMES)}")
    parser.add_argument("--shots", default=[0], type=_numbers, help="numbers of solved examples, such as 0,1,8")
    parser.add_argument("--out", type=Path, required=True, help="directory for report.html and report.json")
    parser.add_argument("--limit", type=_count, help="documents per task")
    parser.add_argument("--data", type=Path, help="directory with benchmark files (JSONL); arithmetic needs none")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of shots and of generated documents")
    parser.add_argument("--nproc", type=_count, help="local ranks, laid out as trained; without it: one rank")
    options = parser.parse_intermixed_args(argv)
    check_names(options.tasks)
    from pretrain.checkpoint.directory import locate
    from pretrain.checkpoint.state import expected_config

    candidates = locate(options.checkpoint)
    one_rank = options.nproc is None and "WORLD_SIZE" not in os.environ
    if _spreads(expected_config(candidates, options.overrides, one_rank), options.nproc, trains=False):
        return _local(options.nproc, ["eval", *argv], None)
    _quiet()
    from pretrain.build import open_checkpoint
    from pretrain.evaluation import report

    config, checkpoint = open_checkpoint(candidates, options.overrides, one_rank)
    report(config, checkpoint, options.tasks, options.shots, options.limit, options.seed, options.data, options.out)
    return 0


def _verify(argv: list[str]) -> int:
    unblock()
    parser = argparse.ArgumentParser(
        prog="pretrain verify", allow_abbrev=False, description="The same few steps on one rank and on each layout."
    )
    parser.add_argument("config", help="YAML file; its data is used if it has some")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as data.path=datasets/book")
    parser.add_argument("--layouts", required=True, help="tp2,pp2,tp2pp2dp2+sp+vp2+zero1,... or auto: every kind")
    parser.add_argument("--nproc", type=_count, help="local ranks: what auto fills; without it, what the layouts need")
    parser.add_argument("--steps", type=_count, default=4, help="optimizer steps (default 4)")
    parser.add_argument("--full", action="store_true", help="keep the config's sizes, which must fit one rank in fp32")
    parser.add_argument("--out", type=Path, default=Path("verify.json"), help="default verify.json")
    options = parser.parse_intermixed_args(argv)
    from pretrain.config.load import load
    from pretrain.config.resolve import resolve
    from pretrain.plan.kinds import every_kind, parse, short
    from pretrain.verify.jobs import fits, plan

    _check_writable(options.out)
    config = load(RunConfig, options.config, options.overrides)
    if config.data.resolved_sources:
        config = resolve(config)
    elif options.full and config.model.vocabulary is None:
        raise ConfigError("--full keeps the vocabulary, and the config has none: set data.path or model.vocabulary")
    started = int(os.environ.get("WORLD_SIZE", "0"))
    if options.nproc is not None and (started or options.layouts != "auto"):
        raise ConfigError("--nproc is how many local ranks auto fills: leave it out here")
    if options.layouts == "auto":
        every = every_kind(started or options.nproc or _AUTO_RANKS)
        layouts = [layout for layout in every if not options.full or fits(config, layout)]
        if not layouts:
            raise ConfigError(f"this config runs on no layout of {every[0].world} ranks as it is: leave out --full")
        if len(layouts) < len(every) and _rank() == 0 and (started or every[0].world == 1):
            left_out = ", ".join(short(layout) for layout in every if layout not in layouts)
            print(f"not run, as this config cannot: {left_out}")
    else:
        layouts = [
            parse(text, config.parallel.zero, config.parallel.zero_engine) for text in options.layouts.split(",")
        ]
    jobs = plan(config, layouts, options.full)
    needed = max(job.layout.world for job in jobs)
    if started and started < needed:
        raise ConfigError(f"the layouts need {needed} ranks and the launcher has started {started}")
    if needed > 1 and not started:
        return _local(needed, ["verify", *argv], None)
    _quiet()
    from pretrain.engine import device
    from pretrain.verify.report import Table
    from pretrain.verify.run import Verification

    store, rank = device.meet()
    show = Table(options.out, options.steps, jobs).add if rank == 0 else lambda row: None
    return 0 if Verification(store, rank, max(1, started), options.steps).run(jobs, show) else 1


def _compare(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="pretrain compare", allow_abbrev=False, description="Whether two runs are the same run."
    )
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--out", type=Path, help="also write what was found as JSON")
    options = parser.parse_args(argv)
    if options.out is not None:
        _check_writable(options.out)
    _quiet()
    from pretrain.verify.compare import RecordedRun, compare
    from pretrain.verify.compare_report import show

    try:
        a, b = map(RecordedRun.read, options.runs)
        return 0 if show(a, b, compare(a, b), options.out) else 1
    except OSError as error:
        raise RunError(f"{error.filename} cannot be read or written ({error.strerror})") from None


def _check_writable(path: Path) -> None:
    """Before the work, not after it."""
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise ConfigError(f"--out {path} cannot be written: name a file in a directory that can")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of at least 1")
    return number


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _export(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="pretrain export", allow_abbrev=False, description="Weights for other libraries, after a gate."
    )
    parser.add_argument("checkpoint", help="a run (its newest valid checkpoint), or a checkpoint")
    parser.add_argument("--to", nargs=2, metavar=("FORMAT", "DIR"), required=True, help="hf DIR")
    options = parser.parse_args(argv)
    kind, directory = options.to
    if kind != "hf":
        raise ConfigError(f"--to {kind}: the one known format is hf")
    _quiet()
    from pretrain.build import build_scorer, open_checkpoint
    from pretrain.checkpoint.directory import locate
    from pretrain.checkpoint.hf.export import export

    config, checkpoint = open_checkpoint(locate(Path(options.checkpoint)), ["precision=fp32"], one_rank=True)
    difference = export(checkpoint, config, Path(directory), lambda: build_scorer(config, checkpoint))
    print(f"{directory}: largest logit difference from transformers {difference:.2e}")
    return 0


def _import(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="pretrain import", allow_abbrev=False, description="Weights of other libraries as a run, after a gate."
    )
    parser.add_argument("format", choices=["hf"])
    parser.add_argument("directory", type=Path, help="what save_pretrained wrote")
    parser.add_argument("--out", type=Path, help="run directory to make; absent: runs/ and the directory's name")
    options = parser.parse_args(argv)
    out = options.out or Path("runs") / options.directory.resolve().name
    _quiet()
    from pretrain.build import build_empty
    from pretrain.checkpoint.hf.imports import import_hf, read_config

    config = read_config(options.directory, out)
    engine = build_empty(config)
    difference = import_hf(options.directory, config, engine, lambda line: print(f"warning: {line}", file=sys.stderr))
    print(f"{out}: largest logit difference from transformers {difference:.2e}")
    return 0


def _translate(argv: list[str]) -> int:
    unblock()
    parser = argparse.ArgumentParser(
        prog="pretrain translate", allow_abbrev=False, description="Targets for sources, by beam search; BLEU."
    )
    parser.add_argument("checkpoint", type=Path, help="a run (its newest valid checkpoint), or a checkpoint")
    parser.add_argument("file", type=Path, help="JSON lines with source, and target if BLEU is wanted")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as parallel.tensor=2")
    parser.add_argument("--beam", type=_count, default=4, help="hypotheses kept (default 4; 1: greedy)")
    parser.add_argument("--penalty", type=float, default=0.6, help="of length (default 0.6; 0: none)")
    parser.add_argument("--longest", type=_count, help="tokens of a target; absent: the model's target length")
    parser.add_argument("--out", type=Path, help="file to write the hypotheses to, a line each; absent: printed")
    parser.add_argument("--nproc", type=_count, help="local ranks, which share the sources; without it: one rank")
    options = parser.parse_intermixed_args(argv)
    from pretrain.checkpoint.directory import locate
    from pretrain.checkpoint.state import expected_config

    if options.out is not None:
        _check_writable(options.out)
    candidates = locate(options.checkpoint)
    overrides = ["parallel.pipeline=1", *options.overrides]
    one_rank = options.nproc is None and "WORLD_SIZE" not in os.environ
    if _spreads(expected_config(candidates, overrides, one_rank), options.nproc, trains=False):
        return _local(options.nproc, ["translate", *argv], None)
    _quiet()
    from pretrain.build import open_checkpoint
    from pretrain.evaluation import write_translation

    config, checkpoint = open_checkpoint(candidates, overrides, one_rank)
    write_translation(config, checkpoint, options.file, options.beam, options.penalty, options.longest, options.out)
    return 0


def _spreads(config: RunConfig, ranks: int | None, trains: bool) -> bool:
    """Whether to start local ranks from here. Checks the layout first, so that a mistake is reported once."""
    from pretrain.plan.layout import plan_layout

    if "WORLD_SIZE" in os.environ:
        if ranks is not None:
            raise ConfigError("--nproc starts local ranks, and a launcher (torchrun, srun) has done so: leave it out")
        plan_layout(config, int(os.environ["WORLD_SIZE"]), trains)
        return False
    plan_layout(config, ranks or 1, trains)
    return (ranks or 1) > 1


def _local(ranks: int, arguments: list[str], stop: StopRequest | None) -> int:
    """Starts the same command, less its --nproc, as local ranks."""
    from launch.local import start

    for at, argument in enumerate(arguments):
        if argument.split("=")[0] == "--nproc":
            arguments = arguments[:at] + arguments[at + (1 if "=" in argument else 2) :]
            break
    return start(ranks, arguments, stop)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _quiet() -> None:
    """megatron-core warns at import of each accelerator library that is absent; none is needed here."""
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    warnings.filterwarnings("ignore", message=r".*(_single|non-leaf|not a leaf).*")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _leave(status: int) -> None:
    """Ends the process. A gloo thread that outlives the interpreter aborts it, so the group is closed first and the
    interpreter's own teardown passed over."""
    if "torch" in sys.modules:
        import torch.distributed as dist

        if dist.is_initialized():
            if status in (0, 75):
                dist.barrier()
            dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    entry()
