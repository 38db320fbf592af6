"""Encoders learn made-up texts whose least loss is known: what order two segments are in, where a token is, and what is
near to it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Batch, Cursor, Rows
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import TeacherWeights
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.objectives.replaced_tokens import ReplacedTokensLoss
from tests.helpers.breadth import slow
from tests.helpers.families import family_config
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine

PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4
WORDS, TOPICS = 64, 8
ROWS, SEGMENT = 32, 15
LAG = 12
Text = Callable[[np.random.Generator, int], Rows]


def _masked(random: np.random.Generator, labels: np.ndarray, share: Any = 0.15, **columns: Any) -> Rows:
    """`labels` with a share of the words of each row masked."""
    chosen = (random.random(labels.shape) < share) & (labels >= FIRST)
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


def copies_in_random_order(random: np.random.Generator, rows: int) -> Rows:
    """`copies`, of which one word in six is predicted after all others, in a random order (XLNet)."""
    words = FIRST + random.integers(WORDS, size=(rows, LAG))
    text = np.tile(words, 4)
    count, length = text.shape[1] // 6, text.shape[1]
    turns = np.stack([random.permutation(length) for _ in range(rows)])
    places = np.sort(turns.argsort(axis=1)[:, -count:], axis=1)
    order = 2 * np.where(turns >= length - count, turns, 0)
    labels = np.concatenate([text, np.take_along_axis(text, places, axis=1)], axis=1)
    is_query = np.broadcast_to(np.arange(labels.shape[1]) >= length, labels.shape)
    return Rows(
        np.where(is_query, PAD, labels),
        labels,
        is_query.astype(np.float32),
        segments=np.zeros_like(labels),
        positions=np.concatenate([np.broadcast_to(np.arange(length), text.shape), places], axis=1),
        order=np.concatenate([order, np.take_along_axis(order, places, axis=1) - 1], axis=1),
    )


def one_topic(random: np.random.Generator, rows: int) -> Rows:
    """Words of one topic in each row."""
    size = WORDS // TOPICS
    return _masked(
        random, FIRST + random.integers(TOPICS, size=(rows, 1)) * size + random.integers(size, size=(rows, 32))
    )


def invented_rows(random: np.random.Generator, rows: int) -> Rows:
    """Words of one topic in each row. One row in four is masked as a whole: nobody can tell its topic, so tokens that
    are sampled for it one by one have many."""
    size = WORDS // TOPICS
    words = FIRST + random.integers(TOPICS, size=(rows, 1)) * size + random.integers(size, size=(rows, 32))
    return _masked(random, words, share=np.where(random.random((rows, 1)) < 0.25, 1.0, 0.15))


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


def _train(engine: MegatronEngine, text: Text, steps: int, rate: float = 3e-3) -> None:
    random, ids = np.random.default_rng(0), np.zeros((ROWS, 3), np.int64)
    for step in range(1, steps + 1):
        rows = text(random, ROWS)
        batch = Batch(**vars(rows), sample_ids=ids, cursor=Cursor(step * ROWS, "made up"))
        engine.train_step(batch, rate * min(1, step / 20), step)


def _learn(family: str, text: Text, steps: int, positions: Any = None) -> tuple[float, float, float]:
    """Results on rows held out from training: masked loss before and after, and accuracy of segment order."""
    length = text(np.random.default_rng(0), 1).tokens.shape[1]
    engine, probe = build_engine(_config(family, length, positions)), text(np.random.default_rng(1), 4 * ROWS)
    before = _loss(engine, probe)
    _train(engine, text, steps)
    told = float("nan")
    if probe.next_sentence is not None:
        _, answers = engine.logits(probe)
        told = float((answers.argmax(-1).numpy() == probe.next_sentence).mean())
    return before, _loss(engine, probe), told


def _loss(engine: MegatronEngine, rows: Rows) -> float:
    return float(-(engine.score(rows).log_probability * rows.loss_mask).sum() / rows.loss_mask.sum())


@pytest.mark.slow
def test_an_albert_learns_the_order_of_segments() -> None:
    """The model can infer a masked word's topic and nothing more, so the least loss is ln 8 = 2.08."""
    before, after, told = run_ranks(1, _learn, "albert", ordered_pairs, 150)[0]
    assert before > np.log(WORDS) - 0.2
    assert np.log(WORDS / TOPICS) - 0.1 < after < 2.6
    assert told > 0.95


@pytest.mark.parametrize(
    ("family", "text"),
    [slow(("roformer", copies)), slow(("deberta", copies)), slow(("tlm", translations))],
    ids=["roformer", "deberta", "tlm"],
)
def test_an_encoder_finds_masked_words_by_their_place(family: str, text: Text) -> None:
    """At another distance, or in the other language: at random they would cost ln 64 or ln 32."""
    before, after, _ = run_ranks(1, _learn, family, text, 400)[0]
    assert before > np.log(WORDS) - 0.2
    assert after < 0.25 * before


@pytest.mark.slow
def test_an_xlnet_predicts_words_by_their_place_in_any_order() -> None:
    before, after, _ = run_ranks(1, _learn, "xlnet", copies_in_random_order, 200)[0]
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


def _electra() -> RunConfig:
    sizes = {"layers": 2, "sequence_length": 32, "vocabulary": FIRST + WORDS, "init": {"std": 0.1}}
    return family_config(
        "electra",
        model=sizes,
        generator={"hidden": 32, "heads": 4},
        objective={"name": "replaced_tokens"},
        batch={"sequences": ROWS, "micro_sequences": ROWS},
        optimizer={"learning_rate": 3e-3, "eps": 1e-6, "weight_decay": 0.0},
    )


def _deberta_v3() -> RunConfig:
    """The shipped small config, on this file's rows."""
    rows = f"batch={{sequences: {ROWS}, micro_sequences: {ROWS}}}"
    text = ("model.sequence_length=32", f"model.vocabulary={FIRST + WORDS}")
    return load(RunConfig, "debug/deberta-v3", [rows, *text, "parallel={}", "optimizer.weight_decay=0"])


def _find_replaced(
    made: Callable[[], RunConfig], text: Text, rate: float, steps: int
) -> tuple[float, float, float, float, float]:
    """Results on held-out rows: the loss of the generator before and after; that of finding its tokens, and the entropy
    of their share; the area under the curve of finding random words among the others."""
    config = made()
    engine, probe = build_engine(config), text(np.random.default_rng(1), 8 * ROWS)
    before = _loss(engine, probe)
    _train(engine, text, steps, rate)
    shares = []
    read = ReplacedTokensLoss.read_samples

    def noted(self: ReplacedTokensLoss, batch: Any, tokens_BL: Any) -> Any:
        shares.append(float((tokens_BL != batch.labels_BL).float().mean()))
        return read(self, batch, tokens_BL)

    ReplacedTokensLoss.read_samples = noted  # type: ignore[method-assign]
    total, count = engine.score(probe).terms["replaced"]
    ReplacedTokensLoss.read_samples = read  # type: ignore[method-assign]
    share = float(np.mean(shares))
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    random = np.random.default_rng(2)
    other = np.where(probe.loss_mask > 0, FIRST + random.integers(WORDS, size=probe.labels.shape), probe.labels)
    scores = engine.logits(replace(probe, tokens=other))[0][..., 0].numpy()
    is_other = other != probe.labels
    ranks = scores.ravel().argsort().argsort() + 1.0
    found, kept = int(is_other.sum()), int((~is_other).sum())
    area = (ranks[is_other.ravel()].sum() - found * (found + 1) / 2) / (found * kept)
    return before, _loss(engine, probe), total / count, float(entropy), float(area)


@pytest.mark.slow
def test_an_electra_finds_words_of_another_topic() -> None:
    """The generator can infer a masked word's topic and nothing more: ln 8 = 2.08. One of its samples in eight is the
    original, and words of the row's topic cannot be told apart: the area is at most 1 - 1/16 = 0.94."""
    before, after, loss, entropy, area = run_ranks(1, _find_replaced, _electra, one_topic, 3e-3, 220)[0]
    assert before > np.log(WORDS) - 0.2
    assert np.log(WORDS / TOPICS) - 0.1 < after < 2.5
    assert loss < entropy
    assert 0.92 < area < 0.96


@pytest.mark.slow
def test_a_deberta_v3_finds_rows_that_its_generator_invented() -> None:
    """In `configs/debug/deberta-v3.yaml`. 69% of the masked words cost the generator ln 64 at best, others ln 8."""
    before, after, loss, entropy, area = run_ranks(
        1, _find_replaced, _deberta_v3, invented_rows, 1e-3, 100, timeout_s=900
    )[0]
    assert before > np.log(WORDS) - 0.2
    assert 3.4 < after < 3.8
    assert loss < 0.6 * entropy
    assert area > 0.75


def _distil(steps: int) -> tuple[float, float, float]:
    """Masked loss on held-out rows of a teacher, of a student of it, and of a model without a teacher."""
    alone = _config("bert", 32).model_dump(mode="json")
    alone["objective"]["next_sentence"], alone["model"]["binary_head"] = False, False
    probe = one_topic(np.random.default_rng(1), 4 * ROWS)
    deep = RunConfig.model_validate(alone | {"model": alone["model"] | {"layers": 3}})
    teacher = build_engine(deep)
    _train(teacher, one_topic, 120)
    weights = {name: part.pieces[0].value.clone() for name, part in teacher.state().items()}
    losses = [_loss(teacher, probe)]
    settings = {"teacher": "unused", "teacher_model": deep.model.model_dump(mode="json"), "label_weight": 2.0}
    settings |= {"temperature": 2.0, "kl_weight": 5.0, "cosine_weight": 1.0}
    for more in ({"distillation": settings}, {}):
        student = build_engine(RunConfig.model_validate(alone | more))
        if more:
            for name, part in student.part(TeacherWeights).weights_state().items():
                part.pieces[0].value.copy_(weights[name])
        _train(student, one_topic, steps)
        losses.append(_loss(student, probe))
    return losses[0], losses[1], losses[2]


def _distil_layers() -> tuple[float, float]:
    """Masked loss on held-out rows after the same few steps: of a model that learned from the layers of a wider teacher
    before, and of one with initial weights."""
    alone = _config("bert", 32).model_dump(mode="json")
    alone["objective"]["next_sentence"], alone["model"]["binary_head"] = False, False
    probe = one_topic(np.random.default_rng(1), 4 * ROWS)
    sizes = {"layers": 2 * alone["model"]["layers"], "hidden": 2 * alone["model"]["hidden"]}
    deep = RunConfig.model_validate(alone | {"model": alone["model"] | sizes})
    teacher = build_engine(deep)
    _train(teacher, one_topic, 120)
    settings = {"teacher": "unused", "teacher_model": deep.model.model_dump(mode="json"), "label_weight": 0.0}
    settings |= {"kl_weight": 0.0, "hidden_weight": 1.0, "attention_weight": 1.0}
    student = build_engine(RunConfig.model_validate(alone | {"distillation": settings}))
    for name, part in student.part(TeacherWeights).weights_state().items():
        part.pieces[0].value.copy_(teacher.state()[name].pieces[0].value)
    _train(student, one_topic, 120)
    losses, learned = [], student.state()
    for begins_with in (learned, {}):
        model = build_engine(RunConfig.model_validate(alone))
        for name, part in model.state().items():
            if name.startswith("model/") and name in begins_with:
                part.pieces[0].value.copy_(begins_with[name].pieces[0].value)
        model.state_loaded(0)
        _train(model, one_topic, 30)
        losses.append(_loss(model, probe))
    return losses[0], losses[1]


@pytest.mark.slow
def test_a_student_of_layers_learns_a_further_objective_sooner() -> None:
    learned, initial = run_ranks(1, _distil_layers)[0]
    assert learned < initial - 0.3


@pytest.mark.slow
def test_a_student_learns_sooner_than_a_model_without_a_teacher() -> None:
    teacher, student, alone = run_ranks(1, _distil, 30)[0]
    assert teacher < 2.4
    assert student < alone - 0.3
