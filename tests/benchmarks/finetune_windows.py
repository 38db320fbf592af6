"""Questions whose answer is a span of a context, for the Trainer of transformers: windows of long contexts, and the
text that the logits of these windows say, as the example script run_qa.py makes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_STRIDE, _BEST, _LONGEST_ANSWER = 128, 20, 30
Row = dict[str, Any]


@dataclass(frozen=True)
class Windows:
    """The windows of a split's rows."""

    inputs: list[Row]
    """tokens and labels of each"""
    numbers: list[int]
    """the number of each one's row"""
    offsets: list[dict[int, tuple[int, int]]]
    """first character and the one after the last, for each position of each one's context"""

    @classmethod
    def of(cls, tokenizer: Any, lines: Sequence[Row], length: int) -> "Windows":
        """Labels are the positions of the first answer, or 0 in a window that does not hold all of it."""
        encoded = tokenizer(
            [line["question"] for line in lines],
            [line["context"] for line in lines],
            truncation="only_second",
            max_length=length,
            stride=_STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        inputs, numbers, all_offsets = [], encoded["overflow_to_sample_mapping"], []
        for window, number in enumerate(numbers):
            parts = encoded.sequence_ids(window)
            offsets = {at: encoded["offset_mapping"][window][at] for at, part in enumerate(parts) if part == 1}
            start, end = _positions(lines[number]["answers"], offsets)
            row = {key: encoded[key][window] for key in tokenizer.model_input_names}
            inputs.append(row | {"start_positions": start, "end_positions": end})
            all_offsets.append(offsets)
        return cls(inputs, numbers, all_offsets)

    def answers(self, lines: Sequence[Row], first: NDArray[Any], last: NDArray[Any]) -> list[str]:
        """The text of each row whose span has the largest sum of logits [windows, L] of its ends, in any window."""
        best = [(-np.inf, "")] * len(lines)
        for number, offsets, starts, ends in zip(self.numbers, self.offsets, first, last, strict=True):
            for start in np.argsort(-starts)[:_BEST]:
                for end in np.argsort(-ends)[:_BEST]:
                    if start in offsets and end in offsets and start <= end < start + _LONGEST_ANSWER:
                        text = lines[number]["context"][offsets[start][0] : offsets[end][1]]
                        best[number] = max(best[number], (float(starts[start] + ends[end]), text))
        return [text for _, text in best]


def _positions(answers: dict[str, list[Any]], offsets: dict[int, tuple[int, int]]) -> tuple[int, int]:
    begin = answers["start"][0]
    end = begin + len(answers["text"][0])
    inside = [at for at, (first, last) in offsets.items() if last > begin and first < end]
    if not inside or offsets[inside[0]][0] > begin or offsets[inside[-1]][1] < end:
        return 0, 0
    return inside[0], inside[-1]
