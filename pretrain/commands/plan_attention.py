"""`pretrain plan attention CONFIG [key=value ...] [--png FILE]`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, check_picture
from pretrain.commands.output import write_file

PNG = Path("attention.png")


def main(argv: list[str]) -> int:
    """Prints and draws which keys each layer and head sees."""
    parser = Parser(
        "plan attention",
        "Prints how many keys a query of each layer sees, and draws which ones each head sees. Starts no run and reads "
        "no data.",
        (
            "sparse-transformer/enwik8",
            "gpt3/125m model.layers=2 'model.attention.pattern=[dense, {name: banded, window: 256}]' --png map.png",
        ),
    )
    parser.add_config(overrides="model.layers=2")
    parser.add_argument("--png", type=Path, default=PNG, help=f"PNG to draw (default {PNG}).")
    options = parser.parse(argv)
    return show_attention(options.config, options.overrides, options.png)


def show_attention(config: str, overrides: list[str], png: Path) -> int:
    """Prints a line for each layer and draws layers x heads. Raises ConfigError before any work."""
    from pretrain.config.load import load
    from pretrain.config.run_config import RunConfig
    from pretrain.plan.attention_map import lines, picture
    from pretrain.plan.planner import check_layers

    check_picture(png, "--png")
    model = load(RunConfig, config, overrides).model
    check_layers(model)
    print("\n".join(lines(model)))
    write_file(png, "--png", lambda path: picture(model, path))
    print(f"drawn: {png}")
    return 0
