"""`pretrain compare RUN_A RUN_B [--out FILE]`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, check_writable
from pretrain.errors import RunError


def main(argv: list[str]) -> int:
    """Returns 0 if two runs are the same run, 1 if not."""
    parser = Parser("compare", "Compares two runs step by step. Exits with 1 if they differ.", ("runs/a runs/b",))
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="Run directory.")
    parser.add_argument("--out", type=Path, help="Write the comparison as JSON as well.")
    options = parser.parse(argv)
    if options.out is not None:
        check_writable(options.out)
    from pretrain.verify.compare import RecordedRun, compare
    from pretrain.verify.compare_report import show

    try:
        a, b = map(RecordedRun.read, options.runs)
        return 0 if show(a, b, compare(a, b), options.out) else 1
    except OSError as error:
        raise RunError(f"{error.filename} cannot be read or written ({error.strerror})") from None
