"""Every kind of model is asked about targets: each score is what whole forward passes say, on any layout."""

from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from data_pipeline.tokenizers.byte import ByteTokenizer
from pretrain.config.run_config import RunConfig
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.evaluate.decoding.base import Sampling
from pretrain.evaluate.scorers.make import make_scorer
from tests.helpers.families import family_config
from tests.helpers.hf import randomise
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, tiny_config

TEXTS = [("the cat", " sat"), ("the cat", " ran"), ("the cat", " fell"), ("a", "b"), ("two dogs sat in a", " box")]
OWNERS = [0, 0, 0, 1, 2]
TOLERANCE = 1e-5  # of sums of up to 5 log probabilities
PARALLELS: list[dict[str, Any]] = [{"tensor": 2, "sequence": True}, {"pipeline": 2}, {}]
NAMES = ["gpt", "t5", "bart", "prefix-lm", "bert", "roberta"]


def _config(name: str, parallel: dict[str, Any]) -> RunConfig:
    vocabulary = {"vocabulary": 400}
    if name == "gpt":
        return tiny_config(model=tiny_config().model.model_dump() | vocabulary, parallel=parallel)
    return family_config(name, model=vocabulary, parallel=parallel)


def _engine(name: str, parallel: dict[str, Any]) -> MegatronEngine:
    engine = build_engine(_config(name, parallel), train=False)
    randomise(engine)
    return engine


def _scored(names: list[str], parallel: dict[str, Any]) -> dict[str, np.ndarray]:
    """Scores of each model's scorer, computed a few positions at a time."""
    found = {}
    for name in names:
        engine = _engine(name, parallel)
        scorer = make_scorer(engine.config, engine, ByteTokenizer())
        pairs = [scorer.pair(context, target) for context, target in TEXTS]
        found[name] = scorer.score(pairs, OWNERS)
        meet_again()
    return found


def _anew(names: list[str]) -> dict[str, np.ndarray]:
    """The same scores of each model, [pairs, 2], from full forward passes on one rank, one row at a time."""
    found = {}
    for name in names:
        engine = _engine(name, {})
        how = {"gpt": _continued, "bert": _masked, "roberta": _masked, "prefix-lm": _after_prefix}.get(name, _answered)
        says = [how(engine, _ids(context), _ids(target)) for context, target in TEXTS]
        found[name] = np.array([(sum(log), all(most)) for log, most in says])
        meet_again()
    return found


def _ids(text: str) -> list[int]:
    return ByteTokenizer().encode(text)


Said = tuple[list[float], list[bool]]


def _says(engine: MegatronEngine, rows: Rows, places: list[int], ids: list[int]) -> Said:
    log = engine.logits(rows)[0][0].log_softmax(-1).numpy()
    return [float(log[p, i]) for p, i in zip(places, ids, strict=True)], [
        int(log[p].argmax()) == i for p, i in zip(places, ids, strict=True)
    ]


def _row(ids: list[int]) -> np.ndarray:
    return np.array([ids], np.int64)


def _continued(engine: MegatronEngine, context: list[int], target: list[int]) -> Said:
    ids = [*context, *target]
    rows = Rows.of(_row(ids), _row(ids))
    return _says(engine, rows, list(range(len(context) - 1, len(ids) - 1)), target)


def _answered(engine: MegatronEngine, context: list[int], target: list[int]) -> Said:
    """The score of an encoder-decoder; T5 fills a gap."""
    known = engine.config.objective.specials(ByteTokenizer())
    gap = [known.sentinels[0]] if known.sentinels else []
    before = [known.cls] if known.cls >= 0 else []
    reads = [*before, *context, *gap, known.sep if known.sep >= 0 else known.end]
    says = [known.start, *gap, *target]
    shown = np.ones((1, len(reads)), np.bool_)
    rows = Rows(
        _row(reads), _row(says), np.ones((1, len(says)), np.float32), decoder_tokens=_row(says), attention_mask=shown
    )
    return _says(engine, rows, list(range(len(gap), len(gap) + len(target))), target)


def _after_prefix(engine: MegatronEngine, context: list[int], target: list[int]) -> Said:
    known = engine.config.objective.specials(ByteTokenizer())
    gap = [known.sentinels[0]] if known.sentinels else []
    reads = [*context, *gap, known.end]
    ids = [*reads, known.start, *gap, *target]
    prefix = np.arange(len(ids))[None] < len(reads)
    rows = Rows(_row(ids), _row(ids), np.ones((1, len(ids)), np.float32), attention_mask=prefix)
    first = len(reads) + len(gap)
    return _says(engine, rows, list(range(first, first + len(target))), target)


def _masked(engine: MegatronEngine, context: list[int], target: list[int]) -> Said:
    known = engine.config.objective.specials(ByteTokenizer())
    ids = [known.cls, *context, *target, known.sep]
    logs, mosts = [], []
    for place in range(1 + len(context), len(ids) - 1):
        asked = [*ids[:place], known.mask, *ids[place + 1 :]]
        rows = Rows(_row(asked), _row(ids), np.ones((1, len(ids)), np.float32), attention_mask=_row(ids) >= 0)
        (log,), (most,) = _says(engine, rows, [place], [ids[place]])
        logs.append(log)
        mosts.append(most)
    return logs, mosts


@pytest.fixture(scope="module")
def anew() -> dict[str, np.ndarray]:
    return run_ranks(1, _anew, NAMES)[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def alone() -> dict[str, np.ndarray]:
    return run_ranks(1, _scored, NAMES, {})[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_a_score_is_that_of_whole_forward_passes(
    name: str, alone: dict[str, np.ndarray], anew: dict[str, np.ndarray]
) -> None:
    np.testing.assert_allclose(alone[name], anew[name], rtol=0, atol=TOLERANCE)
    assert np.ptp(alone[name][:, 0]) > 0.1


@pytest.mark.parametrize("parallel", PARALLELS, ids=str)
def test_every_layout_says_what_one_rank_says(parallel: dict[str, Any], anew: dict[str, np.ndarray]) -> None:
    for found in run_ranks(2, _scored, NAMES, parallel):
        for name in NAMES:
            np.testing.assert_allclose(found[name], anew[name], rtol=0, atol=TOLERANCE)


def _whole_rows(parallel: dict[str, Any]) -> np.ndarray:
    return _scored(["gpt"], parallel)["gpt"]


@pytest.mark.parametrize("parallel", [{"context": 2}, {"pipeline": 2, "virtual": 2}], ids=str)
def test_layouts_that_cannot_read_on_score_whole_rows(parallel: dict[str, Any], anew: dict[str, np.ndarray]) -> None:
    for found in run_ranks(2, _whole_rows, parallel):
        np.testing.assert_allclose(found, anew["gpt"], rtol=0, atol=TOLERANCE)


def _texts(names: list[str]) -> dict[str, list[list[int]]]:
    found = {}
    for name in names:
        engine = _engine(name, {})
        scorer = make_scorer(engine.config, engine, ByteTokenizer())
        contexts = [scorer.pair(context, "x")[0] for context, _ in TEXTS]
        found[name] = [answer.tokens for answer in scorer.texts(contexts, 4, Sampling(), ())]
        meet_again()
    return found


def test_texts_are_not_longer_than_asked_and_sentinels_are_no_part_of_them() -> None:
    for name, texts in run_ranks(1, _texts, ["gpt", "t5", "bart", "prefix-lm"])[0].items():
        assert all(len(ids) <= 4 for ids in texts)
        assert any(texts)
        assert name == "gpt" or all(token < ByteTokenizer.vocabulary_size for ids in texts for token in ids)
