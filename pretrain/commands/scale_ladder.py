"""`pretrain scale ladder BASE [key=value ...] --sizes N,N,... --tokens-per-parameter X,X,... --out DIR`"""

import json
import shlex
from pathlib import Path

from pretrain.commands.arguments import Parser, amount, amounts, check_directory, numbers
from pretrain.commands.printing import show
from pretrain.config.load import dump, load
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import resolve
from pretrain.errors import ConfigError
from pretrain.scaling.ladder import LadderSpec, PlannedRun, compact, ladder, total_flops
from pretrain.scaling.rules import RULES

_STEMS, _BRANCHES = "stems.txt", "branches.txt"
_MOST_PARAMETERS, _MOST_RUNS, _MOST_RATE = 1e14, 10_000, 1e6


def main(argv: list[str]) -> int:
    """Writes the configs, and the commands that run them."""
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
    parser.add_config("what the models and runs are like, apart from size and length: YAML file")
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
    parser.add_argument("--runs", type=Path, help="Folder for the runs (default OUT/runs).")
    parser.add_argument("--out", type=Path, required=True, help="Output folder for the configs.")
    options = parser.parse(argv)
    check_directory("--out", options.out)
    base = resolve(load(RunConfig, options.config, options.overrides))
    if (most := max(options.sizes)) > _MOST_PARAMETERS:
        raise ConfigError(
            f"--sizes: {most:.3g} parameters are more than the {_MOST_PARAMETERS:.0e} of the largest ladder"
        )
    if not all(1 / _MOST_RATE <= rate <= _MOST_RATE for rate in options.rates):
        raise ConfigError(f"--rates are times the rule's rate, from {1 / _MOST_RATE:g} to {_MOST_RATE:g}")
    if (runs := sum(options.seeds) * len(options.tokens_per_parameter) * len(options.rates)) > _MOST_RUNS:
        raise ConfigError(f"this ladder has {runs:,} runs or more: make one of at most {_MOST_RUNS:,}")
    out, runs_dir = options.out.absolute(), (options.runs or options.out / "runs").absolute()
    if not all(options.seeds):
        raise ConfigError("--seeds are numbers of at least 1")
    spec = LadderSpec(
        sizes=tuple(sorted(options.sizes)),
        ratios=tuple(options.tokens_per_parameter),
        seeds=tuple(options.seeds),
        rule=options.rule,
        runs_dir=str(runs_dir),
        rates=tuple(options.rates),
    )
    runs = ladder(base, spec)
    _check_budget(runs, options.budget)
    _write(out, runs, spec, f"pretrain scale ladder {shlex.join(argv)}")
    show(_table(runs))
    show(["", "run them, on one machine or on Slurm, stems first:"])
    for array in (out / name for name in (_STEMS, _BRANCHES) if (out / name).exists()):
        launched = ("--tasks", str(array), "--directory", str(out / "launch" / array.stem), "--nodes", "1")
        show([f"  {shlex.join(('sh', str(array)))}   or   pretrain launch slurm {shlex.join(launched)}"])
    show([f"then: pretrain scale fit {shlex.join((str(runs_dir), '--out', str(out / 'law')))}"])
    return 0


def _check_budget(runs: list[PlannedRun], budget: float | None) -> None:
    if budget is None or total_flops(runs) <= budget:
        return
    total, largest = total_flops(runs), max(run.parameters for run in runs)
    own = sum(run.flops for run in runs if run.parameters == largest)
    raise ConfigError(
        f"this ladder takes {total:.3g} FLOPs, more than --budget {budget:.3g}: without its largest size, "
        f"{compact(largest)}, it takes {total - own:.3g}"
    )


def _write(out: Path, runs: list[PlannedRun], spec: LadderSpec, made: str) -> None:
    configs = out / "configs"
    configs.mkdir(parents=True, exist_ok=True)
    files = {run.name: configs / f"{run.name}.yaml" for run in runs}
    for run in runs:
        said = f"branch of {run.stem}" if run.stem else "stem"
        files[run.name].write_text(
            f"# {run.name}: {run.parameters:,} parameters, {run.tokens:,} tokens; {said}. Rates, batch and warm-up by "
            f"the rule {spec.rule}.\n# Written by: {made}\n{dump(run.config)}",
            encoding="utf-8",
        )
    for name, some in ((_STEMS, [r for r in runs if not r.stem]), (_BRANCHES, [r for r in runs if r.stem])):
        lines = "".join(f"pretrain train {shlex.quote(str(files[run.name]))}\n" for run in some)
        if lines:
            (out / name).write_text(lines, encoding="utf-8")
        else:
            (out / name).unlink(missing_ok=True)
    facts = [
        {
            "name": run.name,
            "config": str(files[run.name]),
            "run_dir": run.config.run.dir,
            "stem": run.stem,
            "parameters": run.parameters,
            "tokens": run.tokens,
            "flops": run.flops,
            "steps": run.config.train.steps,
        }
        for run in runs
    ]
    (out / "ladder.json").write_text(json.dumps({"made": made, "rule": spec.rule, "runs": facts}, indent=1) + "\n")


def _table(runs: list[PlannedRun]) -> list[str]:
    lines = [f"{'run':<18}{'layers':>7}{'hidden':>8}{'tokens':>9}{'steps':>8}{'batch':>7}{'rate':>10}{'FLOPs':>10}"]
    for run in runs:
        model, config = run.config.model, run.config
        lines.append(
            f"{run.name:<18}{model.layers:>7}{model.hidden:>8}{compact(run.tokens):>9}{config.train.steps:>8,}"
            f"{config.batch.sequences:>7}{config.optimizer.learning_rate:>10.3g}{run.flops:>10.2e}"
        )
    steps = sum(run.config.train.steps or 0 for run in runs)
    return [
        *lines,
        f"{len(runs)} runs of {steps:,} steps, of which branches share their stems': {total_flops(runs):.3g} FLOPs",
    ]
