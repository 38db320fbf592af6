"""What the numbers of a task head say of a row."""

from unittest.mock import create_autospec

import numpy as np
import pytest

from data_pipeline.batch import RIGHT_CHOICE, WRONG_CHOICE, Rows
from data_pipeline.recipes.choice import ChoiceSamples
from pretrain.finetune.answers import reader


@pytest.mark.parametrize(("outputs", "predicted"), [((0.5, 0.5, 0.1), 1), ((0.1, 0.1, 0.5), 2)])
def test_a_right_choice_that_is_there_twice_is_right_both_times(outputs: tuple[float, ...], predicted: int) -> None:
    samples = create_autospec(ChoiceSamples, instance=True)
    samples.choices.return_value = ["is", "is", "was"]
    labels = np.array([[WRONG_CHOICE, 0, RIGHT_CHOICE, 0, WRONG_CHOICE]])
    row = Rows(np.zeros_like(labels), labels, np.zeros(labels.shape, np.float32))
    logits = np.zeros((5, 1), np.float32)
    logits[[0, 2, 4], 0] = outputs
    answer = reader(samples, "choice", ())(0, row, logits)
    assert (answer.predicted, answer.expected) == (predicted, 1)
