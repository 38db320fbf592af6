"""`pretrain scale ladder|fit|predict`"""

from pretrain.commands.arguments import Parser


def main(argv: list[str]) -> int:
    """Scaling laws: what a larger run will reach, from smaller ones."""
    parser = Parser(
        "scale",
        "Scaling laws: plans runs of several sizes, fits laws to their losses, says what a larger run will reach.",
        (
            "ladder debug/gpt data.path=datasets/book --sizes 0.2M,0.4M,0.8M --tokens-per-parameter 20,40 --out ladder",
            "fit runs/ladder --out reports/law",
            "predict reports/law --flops 1e16",
        ),
    )
    verbs = ("ladder", "fit", "predict")
    parser.add_argument("verb", choices=verbs, help="Command to run; `pretrain scale VERB --help` shows its options.")
    verb, rest = parser.parse(argv[:1]).verb, argv[1:]
    match verb:
        case "ladder":
            from pretrain.commands import scale_ladder

            return scale_ladder.main(rest)
        case "fit":
            from pretrain.commands import scale_fit

            return scale_fit.main(rest)
        case _:
            from pretrain.commands import scale_predict

            return scale_predict.main(rest)
