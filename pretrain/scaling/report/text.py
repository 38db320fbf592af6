"""A ladder, a law and a prediction as lines of text."""

from collections.abc import Mapping, Sequence
from typing import Any

from pretrain.pages.numbers import compact
from pretrain.scaling.backtest import MISS
from pretrain.scaling.best_size import why_unknown
from pretrain.scaling.ladder import PlannedRun, total_flops
from pretrain.scaling.law import Law, Tested
from pretrain.scaling.predict import Prediction
from pretrain.scaling.rules import gpt3_rate, olmo_rate


def ladder_lines(runs: Sequence[PlannedRun]) -> list[str]:
    """Table of the runs, and their total cost."""
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


def law_lines(law: Law) -> list[str]:
    """Every form with its constants and its backtest."""
    main = law.main
    lines = [f"{len(law.points)} runs, of {len(law.points.rungs())} sizes, up to {law.points.most_flops:.3g} FLOPs", ""]
    for name, tested in law.forms.items():
        constants = ", ".join(f"{key} {value:.4g}" for key, value in tested.fitted.constants.items())
        lines += [
            f"{name + ('*' if tested is main else ''):<12}{tested.fitted.form.formula}: {constants}",
            f"{'':<12}objective {tested.fitted.objective:.5e}; {_backtest(tested)}",
        ]
    lines += [f"{name:<12}left out: {why}" for name, why in law.left_out.items()]
    fit = law.isoflop
    if fit.exponent is not None:
        lines += [f"isoflop     best N = {fit.factor:.3g} C^{fit.exponent:.3f}, of {len(fit.valleys)} budgets"]
    if not main.fitted.form.of_compute and (why := why_unknown(main.fitted, law.points)) is not None:
        lines.append(f"best size   none: {why}")
    lines += [f"warning: {said}" for said in law.diverged]
    if main.backtest is None:
        said = "first of the forms that can be fitted. None has a backtest: they give no number and no interval."
    else:
        said = f"misses least on average. Above {100 * MISS:g}% it gives intervals alone."
    return [*lines, "", f"* speaks first: {said}"]


def _backtest(tested: Tested) -> str:
    if tested.backtest is None:
        return f"no backtest: {tested.untested}"
    test = tested.backtest
    return (
        f"backtest: {len(test.rows)} runs left out, {test.further:.2g} times the compute: "
        f"{100 * test.mean_miss:.2f}% off on average, {100 * test.miss:.2f}% at most"
    )


def prediction_lines(law: Law, prediction: Prediction) -> list[str]:
    """Size, tokens, compute, loss and learning rate of the predicted run."""
    best, chosen = prediction.best_parameters, prediction.chosen
    span = f", 95% within {compact(best.low)} to {compact(best.high)}" if best is not None else ""
    times = prediction.flops / law.points.most_flops
    main = law.main
    is_best = " (the best)" if main.backtest is not None else f" (the best by {main.fitted.form.name}, untested)"
    lines = [
        f"parameters  {compact(prediction.parameters)}{is_best if 'parameters' in chosen else ''}{span}",
        f"tokens      {compact(prediction.tokens)}{is_best if 'tokens' in chosen else ''}, "
        f"{prediction.tokens / prediction.parameters:.3g} per parameter",
        f"compute     {prediction.flops:.3g} FLOPs, {times:.3g} times that of the largest run",
    ]
    lines += [f"warning     {said}" for said in law.diverged]
    if prediction.low is None:
        lines.append("loss        no number and no interval, as")
        lines += [f"            {reason}" for reason in prediction.reasons]
        lines += [f"            {name} says {loss.value:.4f}" for name, loss in prediction.by_form.items()]
        return [*lines, _rate_line(prediction)]
    interval = f"within {prediction.low:.4f} to {prediction.high:.4f}"
    if prediction.loss is not None:
        lines.append(f"loss        {prediction.loss:.4f}, {interval}")
        lines += [
            f"{'':<12}{name}: {loss.value:.4f}, within {loss.low:.4f} to {loss.high:.4f}"
            for name, loss in prediction.by_form.items()
        ]
    else:
        lines.append(f"loss        {interval}; no single number, as")
        lines += [f"            {reason}" for reason in prediction.reasons]
    return [*lines, _rate_line(prediction)]


def _rate_line(prediction: Prediction) -> str:
    if prediction.learning_rate is not None:
        return f"rate        {prediction.learning_rate:.3g}, extrapolated from the runs' rates"
    olmo, gpt3 = olmo_rate(prediction.parameters), gpt3_rate(prediction.parameters)
    return f"rate        not known of these runs; {olmo:.3g} (OLMo-core's rule), {gpt3:.3g} (GPT-3's table)"


def plan_line(plan: Mapping[str, Any]) -> str:
    """Days, layout and cost of a run from its plan's figures."""
    low, high = (plan["days"] * seconds / plan["step_s"] for seconds in plan["step_s_between"])
    cost = "" if plan["cost"] is None else f", at {plan['cost'] / plan['gpu_hours']:g} an hour {plan['cost']:,.0f}"
    return (
        f"takes       {plan['days']:.3g} days, within {low:.3g} to {high:.3g}, on {plan['gpus']:,} x "
        f"{plan['hardware']} ({plan['layout']}, MFU {plan['mfu']:.0%}): {plan['gpu_hours']:,.0f} GPU-hours{cost}"
    )
