"""Encoders learn made-up texts whose least loss is known: what order two segments are in, where a token is, and what is
near to it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Batch, Cursor, Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.megatron.engine import MegatronEngine
from tests.helpers.breadth import slow
from tests.helpers.families import family_config
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine

PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4
WORDS, TOPICS = 64, 8
ROWS, SEGMENT = 32, 15
LAG = 12
Text = Callable[[np.random.Generator, int], Rows]


def _masked(random: np.random.Generator, labels: np.ndarray, **columns: Any) -> Rows:
    """`labels` with 15% of the words masked."""
    chosen = (random.random(labels.shape) < 0.15) & (labels >= FIRST)
    return Rows(np.where(chosen, MASK, labels), labels, chosen.astype(np.float32), **columns)


def ordered_pairs(random: np.random.Generator, rows: int) -> Rows:
    """Rows of two segments: words of one topic, then of the next topic, or the two swapped."""
    topic, follows = random.integers(TOPICS, size=rows), random.integers(2, size=rows)
    topics = np.stack([topic, (topic + 1) % TOPICS], axis=1)
    topics[follows == 0] = topics[follows == 0, ::-1]
    size = WORDS // TOPICS
    words = FIRST + topics[:, :, None] * size + random.integers(size, size=(rows, 2, SEGMENT))
    labels = np.full((rows, 2 * SEGMENT + 3), SEP)
    labels[:, 0], labels[:, 1 : SEGMENT + 1], labels[:, SEGMENT + 2 : -1] = CLS, words[:, 0], words[:, 1]
    segments = np.broadcast_to(np.arange(labels.shape[1]) > SEGMENT + 1, labels.shape).astype(np.int64)
    return _masked(random, labels, segments=segments, next_sentence=follows)


def copies(random: np.random.Generator, rows: int) -> Rows:
    """Each word is the one `LAG` words before it."""
    words = FIRST + random.integers(WORDS, size=(rows, LAG))
    return _masked(random, np.tile(words, 4))


def topics_in_turn(random: np.random.Generator, rows: int) -> Rows:
    """Four stretches of words, each of another topic; the last one may go on at the row's start."""
    topics = np.stack([random.permutation(TOPICS)[:4] for _ in range(rows)]).repeat(LAG, axis=1)
    places = (np.arange(4 * LAG) + random.integers(4 * LAG, size=(rows, 1))) % (4 * LAG)
    size = WORDS // TOPICS
    return _masked(
        random, FIRST + np.take_along_axis(topics, places, 1) * size + random.integers(size, size=places.shape)
    )


def translations(random: np.random.Generator, rows: int) -> Rows:
    """Random words, and behind them of each the word that stands for it in the other language, in the same order."""
    words = FIRST + random.integers(WORDS // 2, size=(rows, SEGMENT))
    labels = np.concatenate([words, words + WORDS // 2], axis=1)
    places = np.broadcast_to(np.tile(np.arange(SEGMENT), 2), labels.shape).copy()
    return _masked(random, labels, segments=(labels >= FIRST + WORDS // 2).astype(np.int64), positions=places)


def _config(family: str, length: int, positions: Any = None) -> RunConfig:
    others: dict[str, Any] = {"model": {}}
    if positions is not None:  # of a BERT that is asked of words alone
        scaled = {"embedding_scale": True} if positions == "sinusoidal" else {}  # or sines outweigh words by far
        others = {
            "model": {"positions": positions, "binary_head": False, "norm": "pre", **scaled},
            "objective": {"next_sentence": False},
        }
    sizes = {"layers": 2, "sequence_length": length, "vocabulary": FIRST + WORDS, "init": {"std": 0.1}}
    return family_config(
        family,
        **{**others, "model": sizes | others["model"]},
        batch={"sequences": ROWS, "micro_sequences": ROWS},
        optimizer={"learning_rate": 3e-3, "eps": 1e-6, "weight_decay": 0.0},
    )


def _learn(family: str, text: Text, steps: int, positions: Any = None) -> tuple[float, float, float]:
    """Results on rows held out from training: masked loss before and after, and accuracy of segment order."""
    random, length = np.random.default_rng(0), text(np.random.default_rng(0), 1).tokens.shape[1]
    engine, probe = build_engine(_config(family, length, positions)), text(np.random.default_rng(1), 4 * ROWS)
    before = _loss(engine, probe)
    ids = np.zeros((ROWS, 3), np.int64)
    for step in range(1, steps + 1):
        rows = text(random, ROWS)
        batch = Batch(**vars(rows), sample_ids=ids, cursor=Cursor(step * ROWS, "made up"))
        engine.train_step(batch, 3e-3 * min(1, step / 20), step)
    told = float("nan")
    if probe.next_sentence is not None:
        _, answers = engine.logits(probe)
        told = float((answers.argmax(-1).numpy() == probe.next_sentence).mean())
    return before, _loss(engine, probe), told


def _loss(engine: MegatronEngine, rows: Rows) -> float:
    return float(-(engine.score(rows).log_probability * rows.loss_mask).sum() / rows.loss_mask.sum())


def test_an_albert_learns_the_order_of_segments() -> None:
    """The model can infer a masked word's topic and nothing more, so the least loss is ln 8 = 2.08."""
    before, after, told = run_ranks(1, _learn, "albert", ordered_pairs, 150)[0]
    assert before > np.log(WORDS) - 0.2
    assert np.log(WORDS / TOPICS) - 0.1 < after < 2.6
    assert told > 0.95


@pytest.mark.parametrize(
    ("family", "text"), [slow(("roformer", copies)), slow(("tlm", translations))], ids=["roformer", "tlm"]
)
def test_an_encoder_finds_masked_words_by_their_place(family: str, text: Text) -> None:
    """At another distance, or in the other language: at random they would cost ln 64 or ln 32."""
    before, after, _ = run_ranks(1, _learn, family, text, 400)[0]
    assert before > np.log(WORDS) - 0.2
    assert after < 0.25 * before


@pytest.mark.slow
@pytest.mark.parametrize(
    "positions",
    [
        "sinusoidal", {"name": "relative", "num_buckets": 32, "max_distance": 128}, "alibi",
        {"name": "rotary", "interleaved": True},
    ],
    ids=["sinusoidal", "relative", "alibi", "rotary"],
)  # fmt: skip
def test_positions_tell_what_is_near(positions: Any) -> None:
    """Without them a masked word could be of any of a row's four topics: ln 32 = 3.47. With them, but for words at a
    border, of one: ln 8 = 2.08. (Learned positions have no distances to begin with; `tlm` above learns by them.)"""
    family = "roformer" if isinstance(positions, dict) and positions["name"] == "rotary" else "bert"
    before, after, _ = run_ranks(1, _learn, family, topics_in_turn, 600, positions)[0]
    assert before > np.log(WORDS) - 0.2
    assert after < 2.8
