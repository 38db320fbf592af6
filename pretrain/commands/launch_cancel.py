"""`pretrain launch cancel RUN [--now]`"""

from launch.cancel import cancel
from pretrain.commands.arguments import Parser
from pretrain.commands.output import print_lines


def main(argv: list[str]) -> int:
    """Cancels a run and prints what was cancelled."""
    parser = Parser("launch cancel", "Cancels a run; one that is running saves a checkpoint first.", ("runs/book",))
    parser.add_launched_run()
    parser.add_argument("--now", action="store_true", help="Cancel without saving.")
    options = parser.parse(argv)
    print_lines(cancel(options.run, options.now))
    return 0
