"""Program of a job's script: `python -m launch.slurm.supervise --directory D [--run RUN] ... -- COMMAND`."""

import argparse
import os
import sys
from pathlib import Path

from launch import tasks
from launch.guard import guard
from launch.slurm import client
from launch.slurm.allocation import Allocation
from launch.supervisor import SILENCE_S, Supervisor, say
from pretrain.errors import ConfigError, RunError
from pretrain.run_dir.paths import CONFIG


def main(argv: list[str]) -> int:
    """Supervises COMMAND within the job that this process is in. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m launch.slurm.supervise", allow_abbrev=False)
    parser.add_argument("--directory", type=Path, required=True, help="Folder of attempts.jsonl.")
    parser.add_argument("--run", type=Path, help="Directory of the run.")
    parser.add_argument(
        "--restarts", type=int, required=True, help="Give up after N restarts without a new checkpoint."
    )
    parser.add_argument("--script", required=True, help="Batch script of this job, to resubmit it.")
    parser.add_argument(
        "--task", nargs=2, metavar=("FILE", "NUMBER"), help="Task of an array, which COMMAND ends with."
    )
    parser.add_argument(
        "--shrink-from", type=int, metavar="RANKS", help="Resume without lost nodes, which had RANKS each."
    )
    parser.add_argument(
        "--spare",
        nargs=2,
        type=int,
        default=(0, None),
        metavar=("N", "RANKS"),
        help="Keep N nodes of the job idle until others are lost; nodes have RANKS each.",
    )
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    command, run_dir = options.command, options.run
    try:
        if options.task is not None:
            task = tasks.read(Path(options.task[0]), int(options.task[1]))
            command, run_dir = [*command, *task.command], Path(task.run_dir) if task.run_dir is not None else None
        config = str(options.directory / CONFIG) if options.shrink_from is not None else None
        spares, ranks = options.spare
        allocation = Allocation(
            client.this_job(os.environ),
            os.environ["SLURM_JOB_NODELIST"],
            options.script,
            options.shrink_from or ranks,
            config,
            spares=spares,
        )
    except ConfigError as error:
        say(str(error))
        return error.exit_status

    def work() -> int:
        try:
            return Supervisor(allocation, options.directory, run_dir, options.restarts, SILENCE_S, say).run(command)
        except (ConfigError, RunError) as error:
            say(str(error))
            return error.exit_status

    return guard(work, say)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
