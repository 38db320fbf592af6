"""`pretrain plot RUN... [--out PICTURE] [--terminal] [--over tokens|steps]`"""

import shutil
from pathlib import Path

from pretrain.commands.arguments import Parser, check_writable
from pretrain.commands.output import print_lines
from pretrain.errors import ConfigError, RunError


def main(argv: list[str]) -> int:
    """Draws the curves of runs. Raises ConfigError for a path without a run."""
    parser = Parser(
        "plot",
        "Draws loss, held-out loss, learning rate, gradient norm and speed of several runs.",
        ("runs/a runs/b", "runs --out runs.png", "runs/a runs/b --over steps --out runs.html"),
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="Run directory, or a directory of runs.")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PICTURE",
        help="PNG file, or an HTML page that needs nothing else, by its ending (default: only the terminal).",
    )
    parser.add_argument("--terminal", action="store_true", help="Draw in the terminal, with --out as well.")
    parser.add_argument(
        "--over", choices=("tokens", "steps"), default="tokens", help="What curves are drawn over (default tokens)."
    )
    options = parser.parse(argv)
    out: Path | None = options.out
    if out is not None:
        if out.suffix.lower() not in (".png", ".html"):
            raise ConfigError(f"--out {out}: name a file that ends with .png or .html")
        check_writable(out)
    from pretrain.pages.run_curves import read_curves
    from pretrain.pages.terminal_chart import terminal_lines

    try:
        curves, notes = read_curves(options.runs, options.over)
        if out is not None:
            from pretrain.pages.run_pictures import write_picture  # takes half a second to import

            write_picture(out, curves, options.over, notes)
    except OSError as error:
        raise RunError(f"{error.filename} cannot be read or written ({error.strerror})") from None
    if out is None or options.terminal:
        print_lines(terminal_lines(curves, options.over, notes, shutil.get_terminal_size((100, 24)).columns))
    else:
        print_lines(f"note: {note}" for note in notes)
    if out is not None:
        print_lines([f"wrote {out}"])
    return 0
