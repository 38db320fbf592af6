"""Notes on figures of texts: how they were computed, and what those that were made for English do to the texts of other
languages, counted."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from data_pipeline.writing.folding import is_unspaced
from pretrain.evaluate.bleu import BY_SPACE, CHRF, bleu, chrf
from pretrain.evaluate.rouge import KINDS, loses_letters
from pretrain.evaluate.tasks.normalization import NORMALIZATIONS, PUTS_SPACES, for_every_script
from pretrain.finetune.metric_context import MetricContext
from pretrain.finetune.text_metrics import any_of

_COMPARED = ("exact_match", "f1_of_tokens")


def how_computed(
    figures: Sequence[str], predictions: Sequence[Any], references: Sequence[Any], context: MetricContext
) -> dict[str, str]:
    """Method by which each figure of texts was computed, by name: the normalization, the words, or sacrebleu's
    signature."""
    found = {}
    for name in figures:
        if name in _COMPARED:
            found[name] = f"normalization:{context.normalization}"
        elif name in KINDS:
            found[name] = f"words:{'unicode' if context.unicode_words else 'default'}"
        elif name == "bleu":
            texts = [any_of(one) for one in references]
            found[name] = bleu(predictions, texts, tokenize=context.bleu_tokenize).signature
        elif name in CHRF:
            found[name] = chrf(name, predictions, [any_of(one) for one in references]).signature
    return found


def unfit_notes(
    figures: Sequence[str], predictions: Sequence[Any], references: Sequence[Any], context: MetricContext
) -> Sequence[str]:
    """A sentence for each figure and each way in which it does not suit the texts of some rows."""
    if not any(name in figures for name in (*_COMPARED, "bleu", *KINDS)):
        return ()
    return tuple(_notes(figures, predictions, [any_of(one) for one in references], context))


def _notes(
    figures: Sequence[str], predictions: Sequence[str], rows: Sequence[Sequence[str]], context: MetricContext
) -> Iterator[str]:
    def expecting(is_so: Callable[[str], bool]) -> int:
        return sum(any(map(is_so, texts)) for texts in rows)

    every = f"of {len(rows):,} rows"
    if "exact_match" in figures and not context.normalization.startswith("unicode"):
        wrong = sum(_wrong_by_form(answer, texts, context) for answer, texts in zip(predictions, rows, strict=True))
        if wrong:
            yield (
                f"{wrong:,} {every} are answered wrongly only by Unicode form, width, digits, punctuation or case, "
                f"which the normalization {context.normalization} compares as ASCII: evaluate.normalization=unicode "
                "reads every script"
            )
    for name, key, by_space in (
        ("f1_of_tokens", "evaluate.normalization=unicode", context.normalization not in PUTS_SPACES),
        ("bleu", "evaluate.bleu_tokenize=zh, ja-mecab or char", context.bleu_tokenize in BY_SPACE),
    ):
        if name in figures and by_space and (unspaced := expecting(is_unspaced)):
            yield (
                f"{unspaced:,} {every} expect text in a script without spaces, of which {name} takes what white space "
                f"separates for a word: set {key}"
            )
    if not context.unicode_words and not set(KINDS).isdisjoint(figures) and (lost := expecting(loses_letters)):
        yield f"{lost:,} {every} expect letters beyond a-z, which ROUGE leaves out: set evaluate.words=unicode"


def _wrong_by_form(answer: str, texts: Sequence[str], context: MetricContext) -> bool:
    normalize = NORMALIZATIONS[context.normalization]
    if normalize(answer) in map(normalize, texts):
        return False
    read = for_every_script(normalize, punctuation=True, case=True)
    return read(answer) in map(read, texts)
