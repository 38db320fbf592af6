"""`pretrain scale predict LAW --flops C | --parameters N | --tokens D`"""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from pretrain.commands.arguments import Parser, amount, count
from pretrain.commands.printing import show
from pretrain.errors import ConfigError
from pretrain.plan.device import find_device
from pretrain.scaling.ladder import compact
from pretrain.scaling.law import Law, read
from pretrain.scaling.predict import Prediction, predict
from pretrain.scaling.rules import gpt3_rate, olmo_rate

_WRITTEN = "predictions.jsonl"
_DAY_S = 86_400


def main(argv: list[str]) -> int:
    """Prints what the law says, and writes it down with the time beside the law."""
    parser = Parser(
        "scale predict",
        "Says what a larger run will reach by a law that `pretrain scale fit` wrote: its loss, the best size and "
        f"number of tokens, its rate. Each answer is added to {_WRITTEN} and scale.html beside the law.",
        (
            "reports/law --flops 1e21",
            "reports/law --parameters 1.3B --tokens 100B",
            "reports/law --flops 1e21 --gpus 64 --hardware h100 --mfu 0.4",
        ),
    )
    parser.add_argument("law", type=Path, help="folder that `pretrain scale fit --out` wrote")
    parser.add_argument("--flops", type=amount, help="compute of the whole training: the best size for it")
    parser.add_argument("--parameters", type=amount, help="size; without --tokens, with the number that suits it best")
    parser.add_argument(
        "--tokens", type=amount, help="to train on; without --parameters, with the size that suits best"
    )
    parser.add_argument("--gpus", type=count, help="also say how many days so many take, as a bare division")
    parser.add_argument("--hardware", metavar="NAME", help="such as h100, or a YAML file, as for `pretrain plan`")
    parser.add_argument("--mfu", type=amount, help="which part of their bf16 peak is assumed to be reached")
    options = parser.parse(argv)
    asked = (options.gpus, options.hardware, options.mfu)
    if any(value is not None for value in asked) and None in asked:
        raise ConfigError("--gpus, --hardware and --mfu go together: days are FLOPs / (GPUs x peak x MFU)")
    law = read(options.law)
    found = predict(law, options.flops, options.parameters, options.tokens)
    days = _days(found.flops, *asked) if options.gpus is not None else None
    with (options.law / _WRITTEN).open("a", encoding="utf-8") as file:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"time": now, "runs": len(law.points), "law": law.main.fitted.form.name, **asdict(found), "days": days}
        file.write(f"{json.dumps(line, allow_nan=False)}\n")
    from pretrain.evaluate.report.scale_page import write_page

    page = write_page(options.law, law, written(options.law))
    show(_lines(law, found))
    if days is not None:
        assumed = f"if {100 * options.mfu:g}% of the peak is reached"
        show([f"days        {days:.3g} on {options.gpus} x {options.hardware}, {assumed}"])
    show([f"\nwritten to {options.law / _WRITTEN}", f"report: {page}"])
    return 0


def written(directory: Path) -> list[dict[str, object]]:
    """The predictions so far."""
    path = directory / _WRITTEN
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _days(flops: float, gpus: int, hardware: str, mfu: float) -> float:
    peak = find_device(hardware).bf16_flops
    if peak is None:
        raise ConfigError(f"--hardware {hardware} has no bf16: the division is by that peak")
    if mfu > 1:
        raise ConfigError(f"--mfu {mfu:g} is more than the whole peak: say a part of it, such as 0.4")
    return flops / (gpus * peak * mfu) / _DAY_S


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
        return [*lines, f"rate        {found.learning_rate:.3g}, as the runs' own go on with size"]
    published = (
        f"{olmo_rate(found.parameters):.3g} (OLMo-core's rule), {gpt3_rate(found.parameters):.3g} (GPT-3's table)"
    )
    return [*lines, f"rate        not known of these runs; {published}"]
