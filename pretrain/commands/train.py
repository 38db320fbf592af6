"""`pretrain train CONFIG [key=value ...] [--nproc N]`"""

from pathlib import Path

from pretrain.commands.arguments import Parser
from pretrain.process.signals import StopRequest
from pretrain.process.streams import print_a_log


def main(argv: list[str]) -> int:
    """Trains to the end, or until a signal asks to stop."""
    stop = StopRequest()  # before the slow imports
    parser = Parser(
        "train",
        "Trains a model to the end of the run. Resumes from the newest valid checkpoint if run.dir has one; refuses "
        "to resume with settings that define another run, unless run.change declares the change.",
        (
            "debug/gpt data.path=datasets/book run.dir=runs/book --nproc 4",
            "gpt3/125m data.path=datasets/book run.dir=runs/125m parallel.tensor=2 --nproc 8",
        ),
        resumes=True,
    )
    parser.add_config()
    parser.add_nproc("Number of local ranks (default 1; omit under torchrun or srun).")
    options = parser.parse(argv)
    print_a_log()
    from pretrain.checkpoint.check_run_dir import check_run_dir
    from pretrain.commands.local_ranks import needs_local_ranks, start_local_ranks
    from pretrain.config.load import load
    from pretrain.config.run_config import RunConfig
    from pretrain.data.pointless_settings import check_new_run
    from pretrain.data.resolve import resolve
    from pretrain.observe.track import check_trackers

    config = load(RunConfig, options.config, options.overrides)
    check_run_dir(Path(config.run.dir))
    check_trackers(config)
    config = resolve(config)
    check_new_run(config)
    if needs_local_ranks(config, options.nproc, trains=True):
        return start_local_ranks(options.nproc, ["train", *argv], stop)
    from pretrain.training.finetuned import train_and_report
    from pretrain.training.session import open_session

    with open_session(config, stop) as session:
        return train_and_report(session)
