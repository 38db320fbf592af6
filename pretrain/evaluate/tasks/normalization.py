"""What of a generated answer and of its references counts for `exact_match` and `f1`, and what filters make of an
answer before."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_DIGITS = str.maketrans("", "", string.digits)


def squad(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces: SQuAD's evaluation (Rajpurkar et al. 2016, arXiv
    1606.05250)."""
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split())


def word_f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of words, each counted as often as it occurs; two empty texts have 1, as in SQuAD 2.0's evaluation."""
    if not answer or not reference:
        return float(not answer and not reference)
    common = sum((Counter(answer) & Counter(reference)).values())
    return 2 * common / (len(answer) + len(reference))


def exact_match(
    *, regexes_to_ignore: Sequence[str], ignore_case: bool, ignore_punctuation: bool, ignore_numbers: bool
) -> Callable[[str], str]:
    """The normalization of lm-eval's `exact_match`, in its order, after white space around the text is removed."""

    def normalized(text: str) -> str:
        text = text.strip()
        for pattern in regexes_to_ignore:
            text = re.sub(pattern, "", text)
        text = text.lower() if ignore_case else text
        text = text.translate(_PUNCTUATION) if ignore_punctuation else text
        return text.translate(_DIGITS) if ignore_numbers else text

    return normalized


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
"""lm-eval's filters without settings, by name."""
