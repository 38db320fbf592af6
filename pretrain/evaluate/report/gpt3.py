"""GPT-3's published results, as reports show them next to ours."""

import math

from pretrain.evaluate.tasks.published import PUBLISHED, SIZES
from pretrain.pages.numbers import compact

LARGEST = "175B"


def nearest(parameters: int) -> str:
    """The size of `SIZES` that is nearest by its logarithm."""
    return min(SIZES, key=lambda size: abs(math.log(SIZES[size] / max(1, parameters))))


def size_text(size: str) -> str:
    """Name of a GPT-3 model by its parameter count, such as GPT-3 175B."""
    return f"GPT-3 {compact(SIZES[size])}"


def score_at(task: str, metric: str, shots: int, size: str) -> float | None:
    """The published score of the setting that `shots` belongs to (zero-, one- or few-shot), as the paper writes it;
    None: not known."""
    published = PUBLISHED.get((task, metric))
    if published is None:
        return None
    value = published.at(shots)[list(SIZES).index(size)]
    return None if math.isnan(value) else value


def few_shots(task: str, metric: str) -> int | None:
    """K of the few-shot setting; None: nothing was published."""
    published = PUBLISHED.get((task, metric))
    return published.few_shots if published else None


def cell(task: str, metric: str, shots: int, size: str) -> str:
    """`score_at`; where GPT-3 was shown another number of examples, with that."""
    value, few = score_at(task, metric, shots, size), few_shots(task, metric)
    if value is None:
        return ""
    return f"{value:g}" + (f" (K={few})" if shots > 1 and shots != few else "")
