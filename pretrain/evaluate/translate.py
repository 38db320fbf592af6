"""Targets for a file of sources, and their BLEU or chrF against given targets, by sacrebleu."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer
from data_pipeline.writing.folding import is_unspaced
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError
from pretrain.evaluate.attention_picture import MOST, AttentionMatrix, check_attends, draw, source_attention
from pretrain.evaluate.bleu import BY_SPACE, CHRF, bleu, check_tokenize, chrf
from pretrain.evaluate.decoding.base import Beam, DecodeRequest, Stops
from pretrain.evaluate.decoding.decode import decode
from pretrain.evaluate.decoding.prompts import Prompts
from pretrain.evaluate.opening import build_scorer, source_tokenizer_of
from pretrain.run_dir.paths import TOKENIZER

_BATCH = 32  # inputs at a time, of like length


@dataclass(frozen=True)
class TranslationInput:
    """A file's sources, and its targets if it has any."""

    sources: list[str]
    targets: list[str] | None


@dataclass(frozen=True, kw_only=True)
class TranslationResult:
    """Hypotheses for a file, in its order, and their score."""

    hypotheses: list[str]
    score: float | None
    """BLEU or chrF, 0 to 100; None where the file has no targets"""
    signature: str | None
    """sacrebleu's, which says how it was computed"""
    cut: int
    """sources that were longer than the model reads"""
    attention: Sequence[AttentionMatrix] = ()
    """attention of the first sentences, where it was wanted"""
    unspaced: int = 0
    """targets in a script without spaces, where the tokenizer of BLEU takes what white space separates for a word"""


@dataclass(frozen=True)
class TranslationMetric:
    """Metric by which hypotheses are compared with targets."""

    name: str = "bleu"
    """bleu, chrf or chrf++"""
    tokenize: str = "13a"
    """sacrebleu's tokenizer, of BLEU"""

    def check(self) -> None:
        """Raises ConfigError where the tokenizer is not here."""
        if self.name == "bleu":
            check_tokenize(self.tokenize)
        elif self.tokenize != "13a":
            raise ConfigError(f"--tokenize {self.tokenize} is of BLEU, and --metric {self.name} has none: leave it out")


def read(path: Path) -> TranslationInput:
    """JSON lines with `source`, and with `target` in all of them or in none. Raises ConfigError for others."""
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
        sources = [str(record["source"]) for record in records]
        "".join(sources).encode()  # JSON can name half a character
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not JSON lines with a source each ({type(error).__name__}: {error})") from None
    if not sources:
        raise ConfigError(f"{path} has no lines")
    with_target = sum("target" in record for record in records)
    if with_target not in (0, len(records)):
        raise ConfigError(f"{path}: {with_target} of {len(records)} lines have a target; all or none should")
    return TranslationInput(sources, [str(record["target"]) for record in records] if with_target else None)


def translate_file(
    config: RunConfig,
    checkpoint: Path,
    file: Path,
    *,
    beam: int,
    penalty: float,
    longest: int | None,
    metric: TranslationMetric = TranslationMetric(),
    picture: Path | None = None,
) -> TranslationResult | None:
    """A target for each source of `file`, and a score where it has targets; None on all ranks but the reporting one.
    `longest`: tokens of a target; None: as many as the model has positions for. `picture`: a file for the attention of
    the first sentences. Raises ConfigError for a model that
    makes no targets. Collective."""
    if not config.model.is_encoder_decoder:
        raise ConfigError(f"a {config.model.family} model makes no targets: give an encoder-decoder")
    if picture is not None:
        check_attends(config.model)
    metric.check()
    lines = read(file)
    engine = build_scorer(config, checkpoint)
    tokenizer = load_tokenizer(checkpoint / TOKENIZER)
    limit = longest or config.model.label_length
    if limit > config.model.label_length:
        raise ConfigError(
            f"--longest {limit} is more than the {config.model.label_length} positions that targets have: leave it out"
        )
    result = translate(
        engine,
        Prompts(config, tokenizer, source_tokenizer_of(config, checkpoint)),
        lines,
        length=config.model.sequence_length,
        longest=limit,
        beam=Beam(beam, penalty),
        metric=metric,
        attention=0 if picture is None else MOST,
    )
    if picture is not None and engine.is_reporter:
        draw(result.attention, picture)
    return result if engine.is_reporter else None


def translate(
    engine: Engine,
    prompts: Prompts,
    lines: TranslationInput,
    *,
    length: int,
    longest: int,
    beam: Beam,
    metric: TranslationMetric = TranslationMetric(),
    attention: int = 0,
) -> TranslationResult:
    """Beam search for each source, which is cut to `length` ids, for targets of at most `longest`. Collective: data
    ranks share the sources, and all have the result. `attention`: sentences whose attention weights are wanted."""
    specials, tokenizer, reads = prompts.specials, prompts.tokenizer, prompts.reads
    room = length - len(reads.closed([]))
    ids = [reads.tokenizer.encode(source) for source in lines.sources]
    cut = sum(len(source) > room for source in ids)
    requests = [DecodeRequest(reads.closed(source[:room]), specials.start, longest, "") for source in ids]
    decoded = decode(engine, requests, beam, Stops(frozenset({specials.end})), hypotheses=_BATCH * beam.width)
    known = tokenizer.vocabulary_size  # a target may hold ids that the objective added, which are no text
    texts = [tokenizer.decode([i for i in target.tokens if i < known and i != specials.cls]) for (target,) in decoded]
    matrices = []
    for request, (target,) in zip(requests[:attention], decoded, strict=False):
        weights = source_attention(engine, request.reads, specials.start, target.tokens)
        source, written = (
            _pieces(owner, ids) for owner, ids in ((reads.tokenizer, request.reads), (tokenizer, target.tokens))
        )
        matrices.append(AttentionMatrix(source, written, weights))
    hypotheses = [" ".join(text.split()) for text in texts]  # a line each
    found = TranslationResult(hypotheses=hypotheses, score=None, signature=None, cut=cut, attention=matrices)
    if lines.targets is None:
        return found
    targets = [[target] for target in lines.targets]
    if metric.name in CHRF:
        scored, unspaced = chrf(metric.name, hypotheses, targets), 0
    else:
        scored = bleu(hypotheses, targets, tokenize=metric.tokenize)
        unspaced = sum(map(is_unspaced, lines.targets)) if metric.tokenize in BY_SPACE else 0
    return replace(found, score=scored.score, signature=scored.signature, unspaced=unspaced)


def _pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Each id as text; one that is none, such as that of the end, as a stroke."""
    known = tokenizer.vocabulary_size
    return [(tokenizer.decode([i]).strip() if i < known else "") or "|" for i in ids]
