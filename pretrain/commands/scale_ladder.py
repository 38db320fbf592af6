"""`pretrain scale ladder BASE [key=value ...] --sizes N,N,... --tokens-per-parameter X,X,... --out DIR`"""

import shlex
from pathlib import Path

from pretrain.commands.arguments import Parser, amount, amounts, check_directory, numbers
from pretrain.commands.output import print_lines
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import resolve
from pretrain.plan.planner import check_one_model
from pretrain.scaling.ladder import LadderSpec
from pretrain.scaling.ladder_files import write_ladder
from pretrain.scaling.report.text import ladder_lines
from pretrain.scaling.rules import RULES


def main(argv: list[str]) -> int:
    """Writes the configs, and the commands that run them."""
    parser = _parser()
    options = parser.parse(argv)
    check_directory("--out", options.out)
    base = resolve(load(RunConfig, options.config, options.overrides))
    check_one_model(base)
    runs_dir = (options.runs or options.out / "runs").absolute()
    spec = LadderSpec(
        sizes=tuple(sorted(options.sizes)),
        ratios=tuple(options.tokens_per_parameter),
        seeds=tuple(options.seeds),
        rule=options.rule,
        runs_dir=str(runs_dir),
        rates=tuple(options.rates),
    )
    out = options.out.absolute()
    written = write_ladder(base, spec, out, budget=options.budget, command=f"pretrain scale ladder {shlex.join(argv)}")
    print_lines(ladder_lines(written.runs))
    print_lines(["", "run them, on one machine or on Slurm, stems first:"])
    for tasks in written.task_files:
        submit = ("--tasks", str(tasks), "--directory", str(out / "launch" / tasks.stem), "--nodes", "1")
        print_lines([f"  {shlex.join(('sh', str(tasks)))}   or   pretrain launch slurm {shlex.join(submit)}"])
    print_lines([f"then: pretrain scale fit {shlex.join((str(runs_dir), '--out', str(out / 'law')))}"])
    return 0


def _parser() -> Parser:
    parser = Parser(
        "scale ladder",
        "Writes the configs of a ladder: runs of several sizes and lengths, made from one config. Each is an ordinary "
        "run: `pretrain train` starts and resumes it. Stems come first; branches start from their checkpoints.",
        (
            "debug/gpt data.path=datasets/book --sizes 0.2M,0.4M,0.8M --tokens-per-parameter 20,40 --out ladder",
            "gpt3/125m data.path=/data/corpus --sizes 190M,370M,760M --tokens-per-parameter 10,20,40 \\\n"
            "    --seeds 3,2,1 --budget 1e21 --out /runs/ladder",
        ),
    )
    parser.add_config("The ladder sets model size and training length.")
    parser.add_argument(
        "--sizes", type=amounts, required=True, help="Sizes in parameters of layers and head, such as 125M,350M."
    )
    parser.add_argument(
        "--tokens-per-parameter",
        type=amounts,
        required=True,
        help="Training lengths in tokens per parameter; each size has a run of each.",
    )
    parser.add_argument(
        "--seeds",
        type=numbers,
        default=[1],
        help="Number of seeds: one number for all sizes, or one for each (default 1).",
    )
    parser.add_argument(
        "--rule", choices=RULES, default="olmo", help="Rule for learning rate, batch and warm-up (default olmo)."
    )
    parser.add_argument(
        "--rates",
        type=amounts,
        default=[1.0],
        help="Multiples of the rule's learning rate, each a run: a sweep (default 1).",
    )
    parser.add_argument("--budget", type=amount, help="Most FLOPs that all runs may take together.")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="Directory for the runs (default OUT/runs).")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="Output directory for the configs.")
    return parser
