"""`pretrain data build|inspect|ledger|trace`"""


def main(argv: list[str]) -> int:
    """What is about runs is here; what is about datasets alone, `data_pipeline` does."""
    match argv[:1]:
        case ["ledger"]:
            from pretrain.commands import data_ledger

            return data_ledger.main(argv[1:])
        case ["trace"]:
            from pretrain.commands import data_trace

            return data_trace.main(argv[1:])
    from data_pipeline import cli
    from pretrain.config.load import load

    return cli.main(argv, load)
