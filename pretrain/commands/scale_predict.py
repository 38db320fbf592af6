"""`pretrain scale predict LAW --flops C | --parameters N | --tokens D [--config BASE --gpus N --hardware NAME]`"""

import argparse
import json
import math
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pretrain.commands.arguments import Parser, amount, check_writable, count
from pretrain.commands.printing import show
from pretrain.config.load import dump, load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.plan.goodput import Failures
from pretrain.plan.plan_report import Prices, figures
from pretrain.plan.planned import make_plan
from pretrain.run_dir.json_lines import read_json_lines
from pretrain.scaling.asked_run import asked_run
from pretrain.scaling.ladder import compact
from pretrain.scaling.law import Law, read
from pretrain.scaling.predict import Prediction, is_askable, predict
from pretrain.scaling.rules import RULES, gpt3_rate, olmo_rate

_WRITTEN = "predictions.jsonl"


def main(argv: list[str]) -> int:
    """Prints the prediction, and records it beside the law with the time."""
    parser = Parser(
        "scale predict",
        "Says what a larger run will reach by a law that `pretrain scale fit` wrote: its loss, the best size and "
        f"number of tokens, its rate. Each answer is added to {_WRITTEN} and scale.html beside the law.",
        (
            "reports/law --flops 1e21",
            "reports/law --parameters 1.3B --tokens 100B",
            "reports/law --flops 1e21 --config gpt3/125m --gpus 64 --hardware h100 --price 2.5 --out run.yaml",
        ),
    )
    parser.add_argument("law", type=Path, help="Folder that `pretrain scale fit --out` wrote.")
    parser.add_argument(
        "--flops", type=amount, help="Compute of the full training in FLOPs; predicts the best size for it."
    )
    parser.add_argument(
        "--parameters",
        type=amount,
        help="Size in parameters; without --tokens, trained on the best number of tokens for it.",
    )
    parser.add_argument(
        "--tokens", type=amount, help="Tokens to train on; without --parameters, with the best size for them."
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="BASE",
        help="Config that the ladder was made from; also plans the predicted run.",
    )
    parser.add_overrides("Keys that the ladder's base was made with, such as model.vocabulary=1024")
    parser.add_argument(
        "--rule", choices=RULES, help="Rule for batch and warm-up of that run, the same as the ladder's (default olmo)."
    )
    parser.add_argument("--gpus", type=count, help="Number of GPUs of that run.")
    parser.add_argument(
        "--hardware", metavar="NAME", help="Hardware by name, such as h100, or a YAML file, as for `pretrain plan`."
    )
    parser.add_argument(
        "--gpus-per-node", type=count, help="GPUs per node (default: as many as the hardware's file says)."
    )
    parser.add_argument("--stack", metavar="NAME", help="Software stack, as for `pretrain plan` (default unknown).")
    parser.add_argument("--price", type=amount, help="Price of a GPU-hour (default: what the hardware's file says).")
    parser.add_argument("--out", type=Path, metavar="YAML", help="Output file for the config of that run.")
    options = parser.parse(argv)
    asked = (options.config, options.gpus, options.hardware)
    if any(value is not None for value in asked) and None in asked:
        raise ConfigError("--config, --gpus and --hardware go together: they say what is planned, and on what")
    about = ("out", "price", "rule", "stack", "gpus_per_node", "overrides")
    if options.config is None and any(getattr(options, name) for name in about):
        raise ConfigError(
            "--out, --price, --rule, --stack, --gpus-per-node and keys are about a run that is planned: say --config, "
            "--gpus and --hardware too"
        )
    if options.out is not None:
        check_writable(options.out)
    law = read(options.law)
    found = predict(law, options.flops, options.parameters, options.tokens)
    config = _config(found, options) if options.config is not None else None
    plan = _planned(config, options) if config is not None else None
    if config is not None and options.out is not None:
        options.out.write_text(dump(config), encoding="utf-8")
    with (options.law / _WRITTEN).open("a", encoding="utf-8") as file:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"time": now, "runs": len(law.points), "law": law.main.fitted.form.name, **asdict(found)}
        line |= {"days": plan and plan["days"], "plan": plan}
        file.write(f"{json.dumps(line, allow_nan=False)}\n")
    from pretrain.scaling.report.page import write_page

    page = write_page(options.law, law, written(options.law, law))
    show(_lines(law, found))
    if plan is not None:
        show(_plan_lines(plan, options))
    show([f"\nwritten to {options.law / _WRITTEN}", f"report: {page}"])
    return 0


def written(directory: Path, law: Law) -> list[dict[str, Any]]:
    """The predictions so far, without what the law could not be asked today and what is no prediction."""
    return [line for line in read_json_lines(directory / _WRITTEN) if _is_prediction(law, line)]


def _is_prediction(law: Law, line: dict[str, Any]) -> bool:
    if not {"time", *Prediction.__dataclass_fields__, "days", "plan"} <= line.keys():
        return False
    known = ("flops", "parameters", "tokens")
    numbers = [line[name] for name in (*known, "low", "high")]
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        return False
    return all(is_askable(law, name, line[name]) for name in known)


def _config(found: Prediction, options: argparse.Namespace) -> RunConfig:
    base = load(RunConfig, options.config, options.overrides)
    if base.model.vocabulary is None:
        raise ConfigError(
            "a size has another shape with each vocabulary, and the config has none: set model.vocabulary"
        )
    rule = options.rule or "olmo"
    return asked_run(base, found.parameters, found.tokens, rate=found.learning_rate, rule=rule, unit=options.gpus)


def _planned(config: RunConfig, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of the fastest layout."""
    plan = make_plan(
        config,
        options.hardware,
        options.gpus,
        per_node=options.gpus_per_node,
        stack_name=options.stack or "unknown",
        target="throughput",
        top=1,
        prices=Prices(options.price, None),
        failures=Failures(),
    )
    return figures(plan, plan.found.options[0]) | {"hardware": options.hardware, "stack": options.stack or "unknown"}


def _plan_lines(plan: dict[str, Any], options: argparse.Namespace) -> list[str]:
    low, high = (plan["days"] * second / plan["step_s"] for second in plan["step_s_between"])
    cost = "" if plan["cost"] is None else f", at {options.price:g} an hour {plan['cost']:,.0f}"
    lines = [
        f"takes       {plan['days']:.3g} days, within {low:.3g} to {high:.3g}, on {plan['gpus']:,} x "
        f"{plan['hardware']} ({plan['layout']}, MFU {plan['mfu']:.0%}): {plan['gpu_hours']:,.0f} GPU-hours{cost}"
    ]
    return lines + ([f"config      {options.out}"] if options.out is not None else [])


def _lines(law: Law, found: Prediction) -> list[str]:
    best = found.best_parameters
    span = f", 95% within {compact(best.low)} to {compact(best.high)}" if best is not None else ""
    lines = [
        f"parameters  {compact(found.parameters)}{' (the best)' if 'parameters' in found.chosen else ''}{span}",
        f"tokens      {compact(found.tokens)}{' (the best)' if 'tokens' in found.chosen else ''}, "
        f"{found.tokens / found.parameters:.3g} per parameter",
        f"compute     {found.flops:.3g} FLOPs, {found.flops / law.points.most_flops:.3g} times that of the largest run",
    ]
    if found.loss is not None:
        lines.append(f"loss        {found.loss:.4f}, within {found.low:.4f} to {found.high:.4f}")
    else:
        lines.append(f"loss        within {found.low:.4f} to {found.high:.4f}; no single number, as")
        lines += [f"            {reason}" for reason in found.reasons]
    lines += [
        f"{'':<12}{name}: {one.value:.4f}, within {one.low:.4f} to {one.high:.4f}"
        for name, one in (found.by_form.items() if found.loss is not None else ())
    ]
    if found.learning_rate is not None:
        return [*lines, f"rate        {found.learning_rate:.3g}, extrapolated from the runs' rates"]
    published = (
        f"{olmo_rate(found.parameters):.3g} (OLMo-core's rule), {gpt3_rate(found.parameters):.3g} (GPT-3's table)"
    )
    return [*lines, f"rate        not known of these runs; {published}"]
