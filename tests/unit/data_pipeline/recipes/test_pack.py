"""Windows against the plainest way to make them."""

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.windows import inputs_and_labels, num_windows


@pytest.mark.parametrize(
    ("tokens", "length", "expected"), [(0, 4, 0), (1, 4, 0), (4, 4, 0), (5, 4, 1), (8, 4, 1), (9, 4, 2)]
)
def test_a_window_needs_its_tokens_and_one_more(tokens: int, length: int, expected: int) -> None:
    assert num_windows(tokens, length) == expected


def test_labels_are_the_inputs_one_later() -> None:
    inputs, labels = inputs_and_labels(np.arange(10).reshape(2, 5))
    assert inputs.tolist() == [[0, 1, 2, 3], [5, 6, 7, 8]]
    assert labels.tolist() == [[1, 2, 3, 4], [6, 7, 8, 9]]
    assert np.shares_memory(inputs, labels), "nothing is copied"


@pytest.mark.parametrize("length", [1, 7, 64, 1500])
def test_windows_equal_documents_laid_end_to_end(dataset: Dataset, length: int) -> None:
    end = dataset.manifest.tokenizer.end_of_text
    stream = [token for _, tokens in dataset.documents("train") for token in [*tokens.tolist(), end]]
    assert len(stream) == dataset.num_tokens("train")
    windows = [stream[i : i + length + 1] for i in range(0, len(stream) - length, length)]
    epoch = SampleStream([(dataset.directory, 1.0)], length, seed=0)
    assert epoch.num_samples == [len(windows)]
    batch = epoch.batch(0, len(windows))
    assert sorted(batch.sample_ids[:, 2].tolist()) == list(range(len(windows)))
    for row, (_, _, window) in enumerate(batch.sample_ids.tolist()):
        assert batch.tokens[row].tolist() == windows[window][:-1]
        assert batch.labels[row].tolist() == windows[window][1:]
    assert batch.loss_mask.all()
    assert batch.loss_mask.shape == batch.tokens.shape
