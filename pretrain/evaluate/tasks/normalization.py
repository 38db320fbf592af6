"""Normalization of a generated answer and of its references for `exact_match` and `f1`, and filters that change an
answer before."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from data_pipeline.writing.folding import PUNCTUATION, folded, one_form, without_case

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_DIGITS = str.maketrans("", "", string.digits)
_ARTICLES = {
    "ar": "\\s\u0627\u0644^|\u0627\u0644",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "hi": None,
    "vi": r"\b(c\u1ee7a|l\u00e0|c\u00e1i|chi\u1ebfc|nh\u1eefng)\b",
    "zh": None,
}
"""MLQA's, by language"""
_MLQA_HAN = re.compile(r"[\u4e00-\u9fa5]")

Normalize = Callable[[str], str]


def squad(text: str) -> str:
    """Lower case, no punctuation of ASCII, no English articles, single spaces: SQuAD's evaluation (Rajpurkar et al.
    2016, arXiv 1606.05250)."""
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split())


def mlqa(language: str, text: str) -> str:
    """Lower case, no punctuation of any script, no articles of the language, single spaces; of Chinese each character
    by itself: the evaluation of MLQA (Lewis et al. 2020, arXiv 1910.07475). Its rule for Arabic takes each alif and lam
    in a row for an article, wherever they stand; lm-eval's takes those that begin a word."""
    text = "".join(char for char in text.lower() if not _is_mlqa_punctuation(char))
    if (articles := _ARTICLES[language]) is not None:
        text = re.sub(articles, " ", text)
    return " ".join((_MLQA_HAN.sub(r" \g<0> ", text) if language == "zh" else text).split())


def _is_mlqa_punctuation(char: str) -> bool:
    return char in string.punctuation or unicodedata.category(char).startswith("P")


NORMALIZATIONS: Mapping[str, Normalize] = {
    "squad": squad,
    "unicode": folded,
    "unicode_tr": partial(folded, dotless=True),
    **{f"mlqa_{language}": partial(mlqa, language) for language in _ARTICLES},
}
"""Normalizations by name: published protocols, and `unicode`, for text of every language."""
PUTS_SPACES = ("unicode", "unicode_tr", "mlqa_zh")
"""normalizations that put spaces between words of scripts without"""


def word_f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of words, each counted as often as it occurs; two empty texts have 1, as in SQuAD 2.0's evaluation."""
    if not answer or not reference:
        return float(not answer and not reference)
    common = sum((Counter(answer) & Counter(reference)).values())
    return 2 * common / (len(answer) + len(reference))


def exact_match(
    *, regexes_to_ignore: Sequence[str], ignore_case: bool, ignore_punctuation: bool, ignore_numbers: bool
) -> Callable[[str], str]:
    """The normalization of lm-eval's `exact_match`, in its order, after white space around the text is removed.
    Punctuation and digits are ASCII's alone, as lm-eval's published scores are: `for_every_script` counts what that
    misses."""

    def normalized(text: str) -> str:
        text = text.strip()
        for pattern in regexes_to_ignore:
            text = re.sub(pattern, "", text)
        text = text.lower() if ignore_case else text
        text = text.translate(_PUNCTUATION) if ignore_punctuation else text
        return text.translate(_DIGITS) if ignore_numbers else text

    return normalized


def for_every_script(rule: Normalize, *, punctuation: bool, case: bool) -> Normalize:
    """`rule`, which was made for ASCII, for characters of every script: Unicode forms, widths and digits are one, no
    punctuation beyond ASCII counts where it removes `punctuation`, and no letter's case where it ignores `case`."""

    def read(text: str) -> str:
        text = one_form(text)
        text = PUNCTUATION.sub(lambda match: match[0] * match[0].isascii(), text) if punctuation else text
        return rule(without_case(text) if case else text)

    return read


def regex_filter(regex_pattern: str, group_select: int, fallback: str) -> Callable[[str], str]:
    """lm-eval's filter `regex`: the match of that number, its first group that is not empty where the pattern has
    several; `fallback` where there is none."""
    compiled = re.compile(regex_pattern)

    def extracted(text: str) -> str:
        matches = compiled.findall(text)
        if not -len(matches) <= group_select < len(matches):
            return fallback
        groups = matches[group_select]
        if isinstance(groups, tuple):
            groups = next((group for group in groups if group), fallback)
        return str(groups).strip()

    return extracted


RESPONSE_FILTERS: dict[str, Callable[[str], str]] = {
    "take_first": str,
    "remove_whitespace": str.lstrip,
    "lowercase": str.lower,
    "uppercase": str.upper,
}
"""lm-eval's filters without settings, by name; its case is Python's, which knows no language."""
