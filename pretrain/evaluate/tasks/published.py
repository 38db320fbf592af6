# ruff: noqa: E501 (a table is read by rows)
"""GPT-3's own results, to stand beside ours: Table H.1 of 2005.14165. Percent, or perplexity."""

from dataclasses import dataclass

SIZES = {
    "Small": 125e6, "Medium": 350e6, "Large": 760e6, "XL": 1.3e9, "2.7B": 2.7e9, "6.7B": 6.7e9, "13B": 13e9, "175B": 175e9,
}  # fmt: skip
"""GPT-3 models and their parameters, in the order of the table's columns."""

# task, metric, K of the few-shot setting | zero-shot, by size | one-shot | few-shot
_TABLE = """
lambada_openai accuracy 15 | 42.7 54.3 60.4 63.6 67.1 70.3 72.5 76.2 | 22.0 47.1 52.6 58.3 61.1 65.4 69.0 72.5 | 22.0 40.4 63.2 57.0 78.1 79.1 81.3 86.4
lambada_openai perplexity 15 | 18.6 9.09 6.53 5.44 4.60 4.00 3.56 3.00 | 165.0 11.6 8.29 6.46 5.53 4.61 4.06 3.35 | 165.0 27.6 6.63 7.45 2.89 2.56 2.56 1.92
arithmetic_2da exact_match 50 | 0.70 0.65 0.70 0.85 1.10 2.54 15.4 76.9 | 2.00 0.55 3.15 4.00 12.1 19.6 73.0 99.6 | 2.00 4.10 3.50 4.50 8.90 11.9 55.5 100.0
arithmetic_2ds exact_match 50 | 1.25 1.25 1.25 1.25 1.60 7.60 12.6 58.0 | 1.15 0.95 1.45 1.95 3.85 11.5 44.6 86.4 | 1.15 1.45 2.25 2.70 7.35 13.6 52.4 98.9
arithmetic_3da exact_match 50 | 0.10 0.10 0.05 0.10 0.10 0.25 1.40 34.2 | 0.15 0.00 0.10 0.30 0.45 0.95 15.4 65.5 | 0.15 0.45 0.30 0.55 0.75 0.90 8.40 80.4
arithmetic_3ds exact_match 50 | 0.05 0.05 0.05 0.05 0.05 0.45 1.35 48.3 | 0.05 0.15 0.25 0.30 0.55 1.60 6.15 78.7 | 0.05 0.10 0.15 0.35 0.65 1.05 9.20 94.2
arithmetic_4da exact_match 50 | 0.05 0.05 0.00 0.00 0.05 0.05 0.15 4.00 | 0.00 0.00 0.10 0.00 0.00 0.10 0.80 14.0 | 0.00 0.05 0.05 0.00 0.15 0.15 0.40 25.5
arithmetic_5da exact_match 50 | 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.65 | 0.00 0.00 0.00 0.00 0.00 0.00 0.05 3.45 | 0.00 0.00 0.00 0.00 0.00 0.00 0.05 9.30
arithmetic_5ds exact_match 50 | 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.80 | 0.00 0.00 0.00 0.00 0.00 0.00 0.05 3.75 | 0.00 0.00 0.00 0.00 0.00 0.00 0.00 9.90
arithmetic_2dm exact_match 50 | 2.20 2.25 2.65 2.10 2.55 5.80 6.15 19.8 | 1.35 2.35 3.35 2.35 4.75 9.15 11.0 27.4 | 1.35 2.90 2.70 2.85 4.25 6.10 7.05 29.2
arithmetic_1dc exact_match 50 | 1.25 2.95 2.75 0.05 0.30 2.35 0.75 9.75 | 1.90 2.80 2.85 3.65 6.45 9.15 8.20 14.3 | 1.70 2.15 3.90 5.75 6.20 7.60 9.95 21.3
cycle_letters exact_match 100 | 0.62 0.71 2.85 0.00 0.63 1.35 2.58 3.66 | 1.67 4.36 5.68 6.46 6.25 9.41 15.1 21.7 | 4.63 9.27 10.7 14.5 16.7 21.9 27.7 37.9
anagrams1 exact_match 100 | 0.10 0.14 0.40 0.00 0.27 0.69 1.16 2.28 | 0.21 0.61 1.12 1.27 1.60 2.72 3.72 8.62 | 0.50 1.27 2.13 3.05 3.81 5.49 8.38 15.1
anagrams2 exact_match 100 | 0.81 1.21 2.69 0.01 1.71 3.75 4.53 8.91 | 1.19 2.62 4.70 4.77 6.97 10.2 14.6 25.9 | 1.94 4.80 7.59 9.87 12.6 18.9 25.6 39.7
random_insertion exact_match 100 | 0.00 0.00 0.10 0.00 0.05 0.42 0.89 8.26 | 0.03 0.05 0.57 1.18 1.67 3.46 6.62 45.4 | 0.11 0.28 2.19 4.18 6.61 11.0 27.3 67.2
reversed_words exact_match 100 | 0.00 0.01 0.01 0.01 0.02 0.03 0.03 0.09 | 0.02 0.01 0.01 0.00 0.05 0.07 0.11 0.48 | 0.00 0.05 0.00 0.17 0.24 0.30 0.42 0.44
"""


@dataclass(frozen=True)
class Published:
    """One metric of one task, for each of `SIZES`."""

    few_shots: int
    """K of the few-shot setting"""
    zero: tuple[float, ...]
    one: tuple[float, ...]
    few: tuple[float, ...]

    def at(self, shots: int) -> tuple[float, ...]:
        """Results of the setting that `shots` belongs to."""
        return self.few if shots > 1 else self.one if shots else self.zero


def _row(line: str) -> tuple[tuple[str, str], Published]:
    head, *settings = line.split("|")
    task, metric, few_shots = head.split()
    zero, one, few = (tuple(map(float, setting.split())) for setting in settings)
    return (task, metric), Published(int(few_shots), zero, one, few)


PUBLISHED: dict[tuple[str, str], Published] = dict(map(_row, _TABLE.strip().splitlines()))
"""by (task, metric)"""
