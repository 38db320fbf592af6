"""`pretrain import hf DIR [--out RUN]`"""

import sys
from pathlib import Path

from pretrain.commands.arguments import Parser, check_directory


def main(argv: list[str]) -> int:
    """Makes a run with checkpoint 0 of another library's weights, if they pass the gate."""
    parser = Parser(
        "import",
        "Makes a run with checkpoint 0 of another library's weights, once its logits agree with ours.",
        ("hf downloads/gpt2 --out runs/gpt2",),
    )
    parser.add_argument("format", choices=["hf"])
    parser.add_argument("directory", type=Path, help="what save_pretrained wrote")
    parser.add_argument("--out", type=Path, help="run directory to make; absent: runs/ and the directory's name")
    options = parser.parse(argv)
    out = options.out or Path("runs") / options.directory.resolve().name
    check_directory("--out", out)
    from pretrain.build import build_empty
    from pretrain.checkpoint.hf.imports import import_hf, read_config

    config = read_config(options.directory, out)
    engine = build_empty(config)
    difference = import_hf(options.directory, config, engine, lambda line: print(f"warning: {line}", file=sys.stderr))
    print(f"{out}: largest logit difference from transformers {difference:.2e}")
    return 0
