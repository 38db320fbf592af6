"""`pretrain scale ladder|fit|predict|coordinates`"""

from pretrain.commands.dispatch import dispatch

_MODULES = {
    "ladder": "scale_ladder",
    "fit": "scale_fit",
    "predict": "scale_predict",
    "coordinates": "scale_coordinates",
}
"""verb -> file in `commands/`"""


def main(argv: list[str]) -> int:
    """Scaling laws: what a larger run will reach, from smaller ones."""
    return dispatch(
        "scale",
        _MODULES,
        argv,
        description=(
            "Scaling laws: plans runs of several sizes, fits laws to their losses, predicts what a larger run will "
            "reach; compares activations of several widths."
        ),
        examples=(
            "ladder debug/gpt data.path=datasets/book --sizes 0.2M,0.4M,0.8M --tokens-per-parameter 20,40 --out ladder",
            "fit runs/ladder --out reports/law",
            "predict reports/law --flops 1e16",
            "coordinates debug/gpt model.vocabulary=512 --widths 64,128,256 --out coordinates",
        ),
    )
