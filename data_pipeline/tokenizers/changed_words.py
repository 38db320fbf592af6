"""Words that a tokenizer changes beyond case: marks, which spell words in most scripts, and joiners that it drops."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from data_pipeline.tokenizers import hf_json
from data_pipeline.tokenizers.base import Tokenizer

FEW = 0.01
"""The largest share of changed words in a text whose marks are no letters: English has 0.03%, German 8%."""
_EXAMPLES, _SHOWN = 3, 24  # examples, and characters of each


@dataclass(frozen=True)
class ChangedWords:
    """Words of a text that come back otherwise than in case."""

    share: float
    """Share of the words that have a letter. A word is a run without white space in any writing, since tokenizers
    change marks by what is around them: where there are no spaces, a phrase."""
    examples: tuple[tuple[str, str], ...]
    """The most frequent ones, each with what becomes of it."""

    def __str__(self) -> str:
        shown = ", ".join(f"{word} -> {spelled}" for word, spelled in self.examples)
        return f"{self.share:.1%} of the words change beyond case ({shown})"


def changed_by_stripping(texts: Iterable[str]) -> ChangedWords:
    """The words that lose marks in BERT's uncased tokenizers, which take them for accents."""
    kept, stripped = hf_json.bert_normalizer(strip_accents=False), hf_json.bert_normalizer(strip_accents=True)
    words = _words(map(kept.normalize_str, texts))
    return _changed(words, {word: stripped.normalize_str(word) for word in words})


def changed_in(tokenizer: Tokenizer, texts: Iterable[str]) -> ChangedWords:
    """The words that a tokenizer's ids give back otherwise; not those with an unknown piece."""
    words = _words(texts)
    ids = dict(zip(words, tokenizer.encode_batch(list(words)), strict=True))
    return _changed(words, {word: tokenizer.decode(ids[word]) for word in words if tokenizer.unknown not in ids[word]})


def _words(texts: Iterable[str]) -> Counter[str]:
    counts = Counter(word for text in texts for word in text.split())
    return Counter({word: count for word, count in counts.items() if any(map(str.isalpha, word))})


def _changed(words: Counter[str], spelled: dict[str, str]) -> ChangedWords:
    total = sum(words[word] for word in spelled)
    changed = Counter({word: words[word] for word in spelled if not _same(word, "".join(spelled[word].split()))})
    examples = tuple(_shown(word, spelled[word].strip()) for word, _ in changed.most_common(_EXAMPLES))
    return ChangedWords(changed.total() / max(total, 1), examples)


def _shown(word: str, spelled: str) -> tuple[str, str]:
    """Both, or of long ones what is around the first change."""
    if len(word) <= _SHOWN:
        return word, spelled
    spelled = "".join(spelled.split())
    pairs = zip(word.lower(), spelled.lower(), strict=False)
    same = next((place for place, (one, other) in enumerate(pairs) if one != other), len(spelled))
    first = max(0, same - _SHOWN // 2)
    return word[first : first + _SHOWN], spelled[first : first + _SHOWN]


def _same(word: str, other: str) -> bool:
    """Whether two words differ in case at most. Another Unicode form is no change where it joins (NFC) or makes equal
    (NFKC); one that takes letters apart (NFD of Hangul) is."""
    forms = (word, unicodedata.normalize("NFC", word), unicodedata.normalize("NFKC", word))
    return other.casefold() in [form.casefold() for form in forms]
