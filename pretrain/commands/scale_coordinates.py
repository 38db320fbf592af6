"""`pretrain scale coordinates CONFIG --widths N,N,... --out DIR [key=value ...]`"""

import shlex
from pathlib import Path

from pretrain.commands.arguments import Parser, check_directory, count, numbers
from pretrain.commands.output import print_lines
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import resolve
from pretrain.errors import ConfigError
from pretrain.plan.planner import check_one_model
from pretrain.scaling.coordinates import check_widths, lines, save


def main(argv: list[str]) -> int:
    """Prints a table, and writes the figures and a picture."""
    parser = Parser(
        "scale coordinates",
        "Trains a config for a few steps at several widths, standard and with muP, and compares how large activations "
        "are. On one rank, in fp32, at the config's learning rate. With muP they should not depend on the width.",
        (
            "debug/gpt --widths 64,128,256,512 --out coordinates",
            "gpt3/125m data.path=/data/corpus model.mup.base_width=256 --widths 256,512,1024 --out coordinates",
        ),
    )
    parser.add_config("Its data is used if it names any.")
    parser.add_argument(
        "--widths",
        type=numbers,
        required=True,
        help="Values of model.hidden, such as 64,128,256. Without model.mup.base_width, muP's base is the smallest.",
    )
    parser.add_argument(
        "--seeds", type=count, default=3, help="Number of initial weights that figures are means over (default 3)."
    )
    parser.add_argument("--steps", type=count, default=10, help="Optimizer steps (default 10).")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="Output directory.")
    options = parser.parse(argv)
    check_directory("--out", options.out)
    check_widths(options.widths)
    base = load(RunConfig, options.config, options.overrides)
    if base.data.resolved_sources:
        base = resolve(base)
    elif base.model.vocabulary is None:
        raise ConfigError("the config has neither data nor a vocabulary: set data.path or model.vocabulary")
    check_one_model(base)
    from pretrain.scaling.report.coordinates import draw
    from pretrain.verify.coordinates import measure

    measured = measure(base, options.widths, options.steps, options.seeds, show=lambda text: print(text, flush=True))
    command = f"pretrain scale coordinates {shlex.join(argv)}"
    file = save(measured, options.out, command)
    print_lines(["", *lines(measured), "", f"figures: {file}", f"picture: {draw(measured, options.out)}"])
    return 0
