"""A model with memory scores held-out text in order: segment by segment as transformers' XLNet in `uni` mode does, and
as one computation over the text under a mask; with other lengths than in training, and on every layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from data_pipeline.dataset.dataset import Dataset
from pretrain.config.run_config import RunConfig
from pretrain.evaluate.heldout import heldout_loss
from tests.helpers.breadth import slow
from tests.helpers.datasets import build_dataset, make_documents
from tests.helpers.families import family_config, train_family
from tests.helpers.hf import randomise, with_weights_of
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine
from tests.multirank.test_segment_memory import SPECIALS, VOCABULARY

LENGTH, MEMORY, SEGMENTS = 16, 24, 5
TOLERANCE = 1e-5
LAYOUTS: list[dict[str, Any]] = [{"tensor": 2, "pipeline": 2}, {"zero": 3, "zero_engine": "deepspeed"}]
_BYTES = {"init": {"std": 0.1}, "vocabulary": 512}
"""a model for text of the dataset's tokenizer"""


def _config(memory: int = MEMORY, length: int = LENGTH, **sections: Any) -> RunConfig:
    model = {"memory_length": memory, "sequence_length": length, **sections.pop("model", {})}
    return family_config("transformer-xl", model=model, **sections)


def _text(length: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, VOCABULARY, (2, length))


def _segments(engine: Any, text: np.ndarray, length: int) -> np.ndarray:
    """Log probabilities of the text's tokens but the first, one segment after the other."""
    found = []
    for start in range(0, text.shape[1] - 1, length):
        tokens, labels = text[:, start : start + length], text[:, start + 1 : start + length + 1]
        rows = Rows(tokens, labels, np.ones(labels.shape, np.float32), before=np.full(len(text), start))
        found.append(engine.score(rows).log_probability)
    return np.concatenate(found, axis=1)


def _continued(engine: Any, text: np.ndarray, prompt: int) -> np.ndarray:
    """Log probabilities of what follows the prompt, token by token."""
    rows = np.arange(len(text))
    hypotheses = engine.prefill([row[:prompt].tolist() for row in text])
    found = [
        engine.next_tokens(hypotheses, rows, text[:, place])[rows, text[:, place + 1]]
        for place in range(prompt, text.shape[1] - 1)
    ]
    return np.stack(found, axis=1)


def _with_transformers(memory: int, length: int) -> Any:
    import torch

    config = _config(memory, length)
    engine = build_engine(config)
    randomise(engine)
    theirs, _ = with_weights_of(engine, config, SPECIALS)
    theirs.config.mem_len = theirs.transformer.mem_len = memory
    text, mems, expected = _text(SEGMENTS * length + 1), None, []
    for start in range(0, SEGMENTS * length, length):
        with torch.no_grad():
            outputs = theirs(input_ids=torch.from_numpy(text[:, start : start + length]), mems=mems, use_mems=True)
        labels = torch.from_numpy(text[:, start + 1 : start + length + 1])
        expected.append(outputs.logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0].numpy())
        mems = outputs.mems
    whole = engine.score(Rows.of(text[:, :-1], text[:, 1:])).log_probability
    prompt = length + 3
    return _segments(engine, text, length), np.concatenate(expected, axis=1), whole, _continued(engine, text, prompt)


@pytest.mark.parametrize(("memory", "length"), [(MEMORY, LENGTH), slow((48, 16)), slow((8, 16)), slow((20, 7))])
def test_segments_and_whole_texts_have_the_scores_of_transformers(memory: int, length: int) -> None:
    segments, expected, whole, continued = run_ranks(1, _with_transformers, memory, length)[0]
    assert np.abs(segments - expected).max() < 3e-5
    assert np.abs(whole - expected).max() < 3e-5
    assert np.abs(continued - expected[:, length + 3 :]).max() < 3e-5


def _whole_and_continued() -> Any:
    model = {"cutoffs": [20, 90, 100], "init": {"std": 0.1}}
    engine = build_engine(_config(model=model, parallel={"tensor": 2}))
    text = _text(SEGMENTS * LENGTH + 1)
    probabilities = np.exp(engine.next_tokens(engine.prefill([[]]), np.zeros(1, np.int64), text[:1, 0]))
    whole = engine.score(Rows.of(text[:, :-1], text[:, 1:])).log_probability
    return whole, _segments(engine, text, LENGTH), _continued(engine, text, LENGTH), probabilities


def test_an_adaptive_softmax_scores_and_continues_alike() -> None:
    whole, segments, continued, probabilities = run_ranks(2, _whole_and_continued)[0]
    assert np.abs(whole - segments).max() < TOLERANCE
    assert np.abs(whole[:, LENGTH:] - continued).max() < TOLERANCE
    assert probabilities.sum() == pytest.approx(1, abs=1e-5)


def _heldout(parallels: list[dict[str, Any]], lanes: list[int], dataset: Path) -> list[Any]:
    """For each layout: losses with these lanes, tokens, and losses of the training that follows."""
    found = []
    for parallel in parallels:
        engine = build_engine(_config(parallel=parallel, model=_BYTES))
        train_family(engine, range(1, 3))
        scored = [heldout_loss(engine, Dataset(dataset), LENGTH, 13, lanes=count) for count in lanes]
        found.append(([one.loss for one in scored], scored[0].token_count, train_family(engine, range(3, 5))))
        meet_again()
    return found


@pytest.mark.slow
def test_held_out_text_has_one_figure_on_every_layout_and_training_does_not_see_it(tmp_path: Path) -> None:
    dataset = build_dataset(make_documents(3, 60), tmp_path).directory
    (((expected, again, one_lane, alone), count, after),) = run_ranks(1, _heldout, [{}], [3, 3, 1, 0], dataset)[0]
    assert (count, again) == (13 * LENGTH, expected)
    assert min(abs(one_lane - expected), abs(alone - expected), abs(alone - one_lane)) > 10 * TOLERANCE
    for (loss, in_one), tokens, curve in run_ranks(4, _heldout, LAYOUTS, [3, 1], dataset)[0]:
        assert loss == pytest.approx(expected, abs=TOLERANCE)
        assert in_one == pytest.approx(one_lane, abs=TOLERANCE)
        assert tokens == count
        assert np.abs(np.array(curve) - np.array(after)).max() < TOLERANCE


def _never_scored() -> Any:
    engine = build_engine(_config(model=_BYTES))
    train_family(engine, range(1, 3))
    return train_family(engine, range(3, 5))


@pytest.mark.slow
def test_training_goes_on_to_the_bit_after_held_out_text_was_scored(tmp_path: Path) -> None:
    dataset = build_dataset(make_documents(3, 60), tmp_path).directory
    ((_, _, after),) = run_ranks(1, _heldout, [{}], [2], dataset)[0]
    assert after == run_ranks(1, _never_scored)[0]
