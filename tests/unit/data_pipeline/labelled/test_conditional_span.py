"""The answer that the outputs of a head with a conditional end give: the best of all spans whose starts were tried."""

import numpy as np
import torch

from data_pipeline.recipes.spans import TRIED_STARTS, Spans, SpansSamples
from pretrain.finetune.answers import reader
from pretrain.models.span_head import tried_starts
from tests.unit.data_pipeline.labelled.conftest import Write
from tests.unit.data_pipeline.labelled.test_spans import _ids, _rows


def _best(samples: SpansSamples, number: int, starts: list[int], outputs: np.ndarray, size: int) -> tuple[float, str]:
    """(log probability, text) by trying each pair of positions."""
    logits = torch.from_numpy(outputs[:size]).double()
    first, places = logits[:, 0].log_softmax(0), samples.context_positions(number)
    best = (-np.inf, "")
    for column, start in enumerate(starts):
        last = logits[:, 2 + column].log_softmax(0)
        for end in range(start, min(start + 30, places.stop)):
            if start in places:
                best = max(best, (float(first[start] + last[end]), samples.answer(number, start, end)))
    return best


def test_it_is_the_best_span_of_the_starts_that_were_tried(write: Write) -> None:
    dataset = write(_rows(12))
    objective = Spans(format="bert", max_question=12, stride=24, conditional_end=True)
    samples = objective.recipe(dataset.tokenizer(), 64).samples(dataset, "train")
    assert isinstance(samples, SpansSamples)
    read, drawn, found = reader(samples, objective.loss, ()), np.random.default_rng(0), set()
    rows = samples.rows(0, _ids(samples.count))
    for number in range(samples.count):
        row = rows[np.array([number])]
        assert row.attention_mask is not None
        size = int(row.attention_mask[0].sum())
        outputs = drawn.standard_normal((64, 2 + TRIED_STARTS)).astype(np.float32) * 3
        outputs[size:] = 50  # of padding
        logits = torch.from_numpy(np.where(np.arange(64) < size, outputs[:, 0], -np.inf))[None]
        (starts,) = tried_starts(logits, TRIED_STARTS).tolist()
        answer = read(number, row, outputs)
        score, text = _best(samples, number, starts, outputs, size)
        assert answer.predicted == text
        assert np.isclose(answer.score, score) or not text
        first, last = (torch.from_numpy(outputs[:size, n]).double().log_softmax(0)[0] for n in (0, 2))
        assert np.isclose(answer.no_answer, float(first + last))
        found.add(text)
    assert len(found) > 5


def test_starts_that_are_tried_are_the_first_position_and_the_best_of_equal_ones_the_earlier() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 0.0, 2.0, 2.0], [0.0, 1.0, *[-torch.inf] * 5]])
    assert tried_starts(logits, 6).tolist()[0] == [0, 1, 3, 2, 5, 6]
    assert tried_starts(logits, 6).tolist()[1][:3] == [0, 1, 0]
    assert tried_starts(logits[:, :3], 6).tolist()[0] == [0, 1, 2, 0, 0, 0]
