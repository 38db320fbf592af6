"""`pretrain features CHECKPOINT_OR_RUN FILE [--layers LAYERS] [--pool token|mean|first|last] [--stack encoder|decoder]
[--text NAME] [--truncate] [--batch N] [--out FILE] [--model MODEL] [--nproc N] [key=value ...]`"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from pretrain.commands.arguments import Parser, check_writable, count, utf8
from pretrain.commands.local_ranks import SCORING_RANKS, needs_local_ranks, start_local_ranks, under_launcher
from pretrain.errors import ConfigError
from pretrain.evaluate.feature_request import FORMS, FeatureRequest, LayerChoice, Texts
from pretrain.process.signals import unblock

_FIELD = "text"
_SUFFIXES = (".safetensors", ".parquet")


def main(argv: list[str]) -> int:
    """Writes vectors of a frozen model for each text of a file."""
    unblock()
    options = _parser().parse(argv)
    out = _output(options)
    from pretrain.checkpoint.state import check_reads_forward, check_reads_own_vocabulary
    from pretrain.commands.checkpoint_argument import find_checkpoints

    texts, digest = _read(options.file, options.text)
    one_rank = options.nproc is None and not under_launcher()
    candidates, expected = find_checkpoints(options, options.overrides, one_rank, model=options.model)
    request = FeatureRequest(
        layers=options.layers,
        pool=options.pool,
        stack=options.stack,
        truncate=options.truncate,
        batch=options.batch,
    )
    request.stack_of(expected.model)
    check_reads_forward(expected, options.checkpoint, "features are of texts as they are written")
    check_reads_own_vocabulary(expected, options.checkpoint)
    if needs_local_ranks(expected, options.nproc, trains=False):
        return start_local_ranks(options.nproc, ["features", *argv], None)
    from pretrain.evaluate.features import write_features
    from pretrain.evaluate.opening import open_checkpoint

    alike = {"--out": str(out), "--model": options.model, "options of features": str(request), "texts": digest}
    config, checkpoint = open_checkpoint(candidates, options.overrides, one_rank, alike, options.model)
    written = write_features(config, checkpoint, texts, request, out)
    if written is None:
        return 0
    if written.truncated:
        print(f"texts cut to the model's length: {written.truncated} of {len(texts.texts)}", file=sys.stderr)
    print(f"vectors {' x '.join(map(str, written.shape))} of {len(texts.texts)} texts: {out}")
    return 0


def _parser() -> Parser:
    parser = Parser(
        "features",
        "Writes the hidden states of a frozen model for each text in a file, as one vector per text or per token.",
        (
            "runs/bert sentences.txt --pool mean --out sentences.safetensors",
            "runs/bert questions.jsonl --text question --layers concat:4 --pool token --nproc 4",
        ),
    )
    parser.add_checkpoint()
    parser.add_argument(
        "file",
        type=Path,
        help="File of texts: one per line, or JSON Lines (*.jsonl) with a text in each object.",
    )
    parser.add_run_overrides()
    parser.add_trust_code()
    parser.add_model("read")
    parser.add_argument(
        "--layers",
        type=_layers,
        default=LayerChoice("last"),
        metavar="LAYERS",
        help=f"Layers whose hidden states make a vector: {FORMS} (default last). 0 is the embedding output; sum:N and "
        "concat:N take the last N layers; all and several numbers write a row for each layer.",
    )
    parser.add_argument(
        "--pool",
        choices=("token", "mean", "first", "last"),
        default="mean",
        help="Vectors of a text. token: one for each token; mean: their mean, without special tokens; first, last: "
        "that of the first token (BERT's [CLS]) or the last one (default mean).",
    )
    parser.add_argument(
        "--stack",
        choices=("encoder", "decoder"),
        help="Stack of an encoder-decoder (default encoder). The decoder reads the text shifted right by one token, "
        "after the encoder has read it.",
    )
    parser.add_argument("--text", type=utf8, metavar="NAME", help="Key of the text in JSON Lines (default text).")
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="Cut texts that are longer than the model reads at their end (default: refuse them).",
    )
    parser.add_argument(
        "--batch",
        type=count,
        help="Texts per forward pass on each data rank (default: as many of similar length as make about 1,024 tokens "
        "on a CPU or 16,384 on a GPU). Changes vectors by rounding only.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="Output file, *.safetensors or *.parquet (default: FILE with the suffix .safetensors, which must not "
        "exist yet).",
    )
    parser.add_nproc(SCORING_RANKS)
    return parser


def _layers(text: str) -> LayerChoice:
    try:
        return LayerChoice.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _output(options: argparse.Namespace) -> Path:
    """The output file. Raises ConfigError for one that cannot be written, or whose kind is unknown."""
    out: Path = options.out or options.file.with_suffix(_SUFFIXES[0])
    if out.suffix not in _SUFFIXES:
        raise ConfigError(
            f"--out {out}: features are written as {' or '.join(_SUFFIXES)}: choose one of these suffixes"
        )
    if options.out is None and out.exists() and not under_launcher():
        raise ConfigError(f"{out} exists: name it with --out to replace it, or name another file")
    check_writable(out)
    return out


def _read(path: Path, field: str | None) -> tuple[Texts, str]:
    """The texts of a file, and its sha256. Raises ConfigError, which names the line, for what is none."""
    if field is not None and path.suffix != ".jsonl":
        raise ConfigError(f"--text {field} is a key of JSON Lines, and {path} is not *.jsonl: leave it out")
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path} line {line} is not text in UTF-8") from None
    numbered = [(number, line.removesuffix("\r")) for number, line in enumerate(lines, 1)]
    if numbered[-1][1] == "":
        numbered.pop()
    if path.suffix == ".jsonl":
        name = field or _FIELD
        numbered = [(number, _text(path, number, line, name)) for number, line in numbered if line.strip()]
    if not numbered:
        raise ConfigError(f"{path} has no texts")
    empty = next((number for number, text in numbered if not text.strip()), None)
    if empty is not None:
        raise ConfigError(f"{path} line {empty} is empty, and an empty text has no vector: remove it")
    numbers, texts = zip(*numbered, strict=True)
    return Texts(path, numbers, texts), hashlib.sha256(content).hexdigest()


def _text(path: Path, number: int, line: str, name: str) -> str:
    try:
        row: Any = json.loads(line)
        if isinstance(row, dict) and isinstance(text := row.get(name), str):
            text.encode()  # JSON can name half a character
            return text
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} line {number} is not JSON ({error.msg} at column {error.colno})") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{path} line {number} has half a character (a surrogate): repair or remove it") from None
    known = f"; it has {', '.join(map(str, row))}" if isinstance(row, dict) else ""
    raise ConfigError(f"{path} line {number} is not an object with a text {name!r}{known}: choose a key with --text")
