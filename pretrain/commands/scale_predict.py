"""`pretrain scale predict LAW --flops C | --parameters N | --tokens D [--config BASE --gpus N --hardware NAME]`"""

import argparse
from pathlib import Path

from pretrain.commands.arguments import Parser, amount, check_writable, count
from pretrain.commands.output import print_lines
from pretrain.config.load import dump, load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.scaling.law import read
from pretrain.scaling.predict import predict
from pretrain.scaling.predicted_run import Cluster, plan_figures, predicted_run
from pretrain.scaling.predictions import PREDICTIONS, read_predictions, record_prediction
from pretrain.scaling.report.text import plan_line, prediction_lines
from pretrain.scaling.rules import RULES


def main(argv: list[str]) -> int:
    """Prints the prediction, and records it beside the law with the time."""
    parser = _parser()
    options = parser.parse(argv)
    run_options = (options.config, options.gpus, options.hardware)
    if any(value is not None for value in run_options) and None in run_options:
        raise ConfigError("--config, --gpus and --hardware go together: they say what is planned, and on what")
    plan_options = ("out", "price", "rule", "stack", "gpus_per_node", "overrides")
    if options.config is None and any(getattr(options, name) for name in plan_options):
        raise ConfigError(
            "--out, --price, --rule, --stack, --gpus-per-node and keys are about a run that is planned: say --config, "
            "--gpus and --hardware too"
        )
    if options.out is not None:
        check_writable(options.out)
    law = read(options.law)
    prediction = predict(law, options.flops, options.parameters, options.tokens)
    plan = None
    if options.config is not None:
        base = load(RunConfig, options.config, options.overrides)
        config = predicted_run(base, prediction, rule=options.rule or "olmo", gpus=options.gpus)
        plan = plan_figures(config, _cluster(options))
        if options.out is not None:
            options.out.write_text(dump(config), encoding="utf-8")
    record = record_prediction(options.law, law, prediction, plan)
    from pretrain.scaling.report.page import write_page

    page = write_page(options.law, law, read_predictions(options.law, law))
    print_lines(prediction_lines(law, prediction))
    if plan is not None:
        print_lines([plan_line(plan)])
    if options.out is not None:
        print_lines([f"config      {options.out}"])
    print_lines([f"\nwritten to {record}", f"report: {page}"])
    return 0


def _parser() -> Parser:
    parser = Parser(
        "scale predict",
        "Predicts a larger run by a law that `pretrain scale fit` wrote: its loss, its best size and number of tokens, "
        f"and its learning rate. Each prediction is added to {PREDICTIONS} and scale.html beside the law.",
        (
            "reports/law --flops 1e21",
            "reports/law --parameters 1.3B --tokens 100B",
            "reports/law --flops 1e21 --config gpt3/125m --gpus 64 --hardware h100 --price 2.5 --out run.yaml",
        ),
    )
    parser.add_argument("law", type=Path, help="Directory that `pretrain scale fit --out` wrote.")
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
        metavar="FILE",
        help="Config that the ladder was made from; also plans the predicted run.",
    )
    parser.add_overrides("model.vocabulary=1024", what="Config override that the ladder was made with")
    parser.add_argument(
        "--rule", choices=RULES, help="Rule for batch and warm-up of that run, the same as the ladder's (default olmo)."
    )
    parser.add_argument("--gpus", type=count, help="Number of GPUs of that run.")
    parser.add_argument(
        "--hardware", metavar="NAME", help="Hardware by name, such as h100, or a YAML file, as for `pretrain plan`."
    )
    parser.add_argument("--gpus-per-node", type=count, help="GPUs per node (default: that of the hardware's file).")
    parser.add_argument("--stack", metavar="NAME", help="Software stack, as for `pretrain plan` (default unknown).")
    parser.add_argument(
        "--price", type=amount, help="Price of a GPU-hour, in any currency (default: that of the hardware's file)."
    )
    parser.add_argument("--out", type=Path, help="Output YAML file for the config of that run.")
    return parser


def _cluster(options: argparse.Namespace) -> Cluster:
    return Cluster(
        gpus=options.gpus,
        hardware=options.hardware,
        per_node=options.gpus_per_node,
        stack=options.stack or "unknown",
        price_per_gpu_hour=options.price,
    )
