"""`pretrain data build|inspect|report|ledger|trace`"""

from pretrain.commands.arguments import Parser


def main(argv: list[str]) -> int:
    """Builds, inspects and reports on datasets; `ledger` and `trace` show what runs read of them."""
    parser = Parser(
        "data",
        "Makes datasets and looks at them, and at what a run reads of them.",
        (
            "build data/text input=book.txt output=datasets/book",
            "inspect datasets/book",
            "report datasets/book",
            "ledger runs/book",
            "trace runs/book --step 17 --text",
        ),
    )
    verbs = ("build", "inspect", "report", "ledger", "trace")
    parser.add_argument("verb", choices=verbs, help="Command to run; `pretrain data VERB --help` shows its options.")
    verb, rest = parser.parse(argv[:1]).verb, argv[1:]
    match verb:
        case "build":
            from pretrain.commands import data_build

            return data_build.main(rest)
        case "inspect":
            from pretrain.commands import data_inspect

            return data_inspect.main(rest)
        case "report":
            from pretrain.commands import data_report

            return data_report.main(rest)
        case "ledger":
            from pretrain.commands import data_ledger

            return data_ledger.main(rest)
        case _:
            from pretrain.commands import data_trace

            return data_trace.main(rest)
