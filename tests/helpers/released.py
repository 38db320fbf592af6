"""Folders of tokenizers as they are released: the JSON files have the released ones' keys, only the vocabularies
shrink."""

import functools
import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from data_pipeline.tokenizers.load import train_tokenizer

WORDS = ["The end of a Document, naïve Müller's 한국어 中文 and 1234 words.  Two spaces\n"] * 40
Beside = dict[str, dict[str, Any]]


@functools.cache
def _byte_level() -> str:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.train_from_iterator(WORDS, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return str(tokenizer.to_str())


def byte_level(specials: list[str], around: tuple[list[str], list[str]] = ([], []), plain: tuple[str, ...] = ()) -> str:
    """A tokenizer.json of byte-level BPE with `specials` behind its pieces, which puts the tokens of `around` before
    and after a text, and with added tokens that are `plain` text."""
    tokenizer = tokenizers.Tokenizer.from_str(_byte_level())
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in specials])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in plain])
    if around != ([], []):
        before, after = around
        marks = [(name, tokenizer.token_to_id(name)) for name in dict.fromkeys((*before, *after))]
        tokenizer.post_processor = processors.TemplateProcessing(single=[*before, "$A", *after], special_tokens=marks)
    return str(tokenizer.to_str())


@functools.cache
def sentencepiece_model(**how: Any) -> bytes:
    """A sentencepiece model, trained as `how` says."""
    model = io.BytesIO()
    lines = (
        line for text in [*WORDS, "a b c d e f g h i j k l m n o p q r s t u v w x y z"] for line in text.split("\n")
    )
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, vocab_size=380, hard_vocab_limit=False, minloglevel=2, **how
    )
    return model.getvalue()


def write(folder: Path, tokenizer: str | bytes, beside: Beside, name: str = "tokenizer.json") -> Path:
    """A folder with a tokenizer's file, and JSON files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(tokenizer.encode() if isinstance(tokenizer, str) else tokenizer)
    for file, tree in beside.items():
        (folder / file).write_text(json.dumps(tree))
    return folder


def identities() -> dict[str, Any]:
    """Tokenizers whose identities a test has on record, by kind."""
    texts = [*WORDS, "plain words of another kind " * 20]
    return {
        kind: train_tokenizer(texts, kind, size) for kind, size in (("bpe", 330), ("byte_bpe", 300), ("wordpiece", 120))
    }  # type: ignore[arg-type]
