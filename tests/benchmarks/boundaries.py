"""Boundaries of words and sentences in rows of tokens, and whole words masked by them, on one CPU core.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.boundaries TEXT [--length 512] [--vocabulary 4000]
        [--kinds wordpiece bpe byte_bpe unigram bytes]

TEXT is a file of JSON lines with a field "text". A tokenizer of each kind is trained on it, and rows of the same text
are read again and again, as in training.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from data_pipeline.recipes.masked import Masked
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import train_tokenizer
from data_pipeline.tokenizers.specials import WritingRule

_KINDS = ("wordpiece", "bpe", "byte_bpe", "unigram", "bytes")
_ROWS, _SECONDS = 200, 1.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--kinds", nargs="+", default=_KINDS)
    options = parser.parse_args()
    texts = [json.loads(line)["text"] for line in options.text.read_text("utf-8").splitlines()]
    print(f"ms per row of {options.length} tokens: ends of sentences, words, masked words, masked n-grams of up to 3")
    for kind in options.kinds:
        tokenizer = train_tokenizer(texts, kind, options.vocabulary)
        rows = _rows(tokenizer, texts, options.length)
        for rule in get_args(WritingRule):
            known = Masked(whole_words=True, boundaries=rule).recipe(tokenizer, options.length).known
            found = [_ms(one, rows) for one in (known.sentence_ends, known.word_begins)]
            for ngrams in (1, 3):
                recipe = Masked(whole_words=True, ngrams=ngrams, boundaries=rule).recipe(tokenizer, options.length)
                masking = recipe.masking(None, "train")  # type: ignore[arg-type]
                found.append(_ms(partial(masking.masked, random=np.random.default_rng(0)), rows))
            print(f"{kind:10} {rule:8}", *(f"{ms:8.3f}" for ms in found), flush=True)


def _rows(tokenizer: Tokenizer, texts: list[str], length: int) -> list[np.ndarray[Any, Any]]:
    ids, enough = list[int](), length * _ROWS
    for text in texts:
        ids += [*tokenizer.encode(text), tokenizer.end_of_text]
        if len(ids) >= enough:
            break
    return [np.array(ids[first : first + length]) for first in range(0, min(len(ids), enough) - length + 1, length)]


def _ms(ask: Callable[[np.ndarray[Any, Any]], Any], rows: list[np.ndarray[Any, Any]]) -> float:
    """Milliseconds a row, of rows that were all met before."""
    for row in rows:
        ask(row)
    asked, start = 0, time.process_time()
    while not asked or time.process_time() - start < _SECONDS:
        for row in rows:
            ask(row)
        asked += len(rows)
    return (time.process_time() - start) / asked * 1e3


if __name__ == "__main__":
    main()
