"""`pretrain import hf DIR|gguf FILE [--out RUN]`"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pretrain.commands.arguments import Parser, check_directory


def main(argv: list[str]) -> int:
    """Makes a run with checkpoint 0 of another library's weights, if they pass the gate."""
    parser = Parser(
        "import",
        "Makes a run with checkpoint 0 of another library's weights, once its logits agree with ours.",
        ("hf downloads/gpt2 --out runs/gpt2", "gguf downloads/SmolLM2-135M.gguf --out runs/smollm2"),
    )
    parser.add_argument("format", choices=["hf", "gguf"], help="Format of the weights.")
    parser.add_argument("source", type=Path, help="Directory that save_pretrained wrote (hf), or file (gguf).")
    parser.add_argument("--out", type=Path, help="Run directory to create (default: runs/ and the source's name).")
    options = parser.parse(argv)
    source = options.source.resolve()
    out = options.out or Path("runs") / (source.name if options.format == "hf" else source.stem)
    check_directory("--out", out)
    if options.format == "hf":
        _import(options.source, out)
        return 0
    from pretrain.checkpoint.hf.gguf import unpack

    with TemporaryDirectory() as temporary:
        unpack(source, Path(temporary) / source.stem)
        _import(Path(temporary) / source.stem, out)
    return 0


def _import(directory: Path, out: Path) -> None:
    from pretrain.checkpoint.hf.imports import import_hf, read_config
    from pretrain.evaluate.opening import build_empty
    from pretrain.observe.ending import after_import

    config = read_config(directory, out)
    engine = build_empty(config)
    agreement = import_hf(directory, config, engine, lambda line: print(f"warning: {line}", file=sys.stderr))
    print("\n".join([f"{out}: {agreement}", *after_import(config)]))
