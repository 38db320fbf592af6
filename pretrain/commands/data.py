"""`pretrain data build|inspect|report|ledger|trace|units`"""

from pretrain.commands.dispatch import dispatch

_MODULES = {
    "build": "data_build",
    "inspect": "data_inspect",
    "report": "data_report",
    "ledger": "data_ledger",
    "trace": "data_trace",
    "units": "data_units",
}
"""verb -> file in `commands/`"""


def main(argv: list[str]) -> int:
    """Builds, inspects and reports on datasets; `ledger` and `trace` show what runs read of them."""
    return dispatch(
        "data",
        _MODULES,
        argv,
        description="Builds and inspects datasets, and shows what a run reads of them.",
        examples=(
            "build data/text input=book.txt output=datasets/book",
            "inspect datasets/book",
            "report datasets/book",
            "ledger runs/book",
            "trace runs/book --step 17 --text",
            "units datasets/news news.jsonl",
        ),
    )
