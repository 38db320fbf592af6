"""Decoding reads each position once, and says what reading everything anew says."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from megatron.core.transformer import utils as megatron_utils

from data_pipeline.batch import Rows
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import DecodeRequest, Sampling, Stops
from pretrain.evaluate.decoding.sampling import sample
from tests.helpers import classics
from tests.helpers.breadth import asked, only
from tests.helpers.families import family_config
from tests.helpers.hf import randomise
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.recurrent import language_model_config, translator_config
from tests.helpers.tiny import VOCABULARY, build_engine, tiny_config

INPUTS, STEPS, START = 16, 7, 3
LENGTHS = (16, 9, 5)
TOLERANCE = 64 * 2.0**-24
"""Error of log probabilities, relative to the largest: a logit is a sum of 64 products in fp32, whose order depends on
the number of rows. Several processors showed 1.4e-6 to 4.8e-6 for numbers from 5 to 15."""


def _inputs() -> tuple[np.ndarray, np.ndarray]:
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (3, INPUTS))
    return tokens, np.arange(INPUTS) < np.array(LENGTHS)[:, None]


def _engine(name: str, parallel: dict[str, Any]) -> MegatronEngine:
    """An engine for a family, or for one of three decoders that continue a text."""
    if name == "gpt":
        config = tiny_config(parallel=parallel)
    elif name == "rotary":
        rotary = {"heads": 8, "kv_heads": 4, "positions": "rotary"}
        config = tiny_config(model=tiny_config().model.model_dump(exclude_none=True) | rotary, parallel=parallel)
    elif name == "decoder-lm":
        config = family_config("prefix-lm", objective="causal", parallel=parallel)
    elif name == "rnn":
        config = translator_config({"cell": "lstm", "score": "general"}, parallel=parallel)
    elif name == "rnn-bahdanau":
        config = translator_config({"cell": "gru", "score": "additive"}, parallel=parallel)
    elif name == "rnn-lm":
        config = language_model_config(parallel=parallel)
    else:
        config = family_config(name, parallel=parallel)
    engine = build_engine(config, train=False)
    randomise(engine)
    if name.startswith("rnn"):  # small weights would make all its states nearly equal
        for key, part in engine.state().items():
            for piece in part.pieces if key.startswith("model/") else ():
                piece.value.mul_(4)
    return engine


def _said() -> list[np.ndarray]:
    """Hypotheses that branch and end at random: of each step the input and the tokens of each, and its parent."""
    random = np.random.default_rng(2)
    inputs, parents, targets, found = np.arange(3), np.arange(3), np.full((3, 1), START), []
    for _ in range(STEPS):
        found.append(np.hstack([parents[:, None], inputs[:, None], targets]))
        parents = np.sort(random.integers(0, len(targets), random.integers(2, 7)))
        newest = random.integers(0, VOCABULARY, len(parents))
        inputs, targets = inputs[parents], np.hstack([targets[parents], newest[:, None]])
    return found


def _decoded(engine: MegatronEngine) -> list[np.ndarray]:
    """Log probabilities of what follows each step, each token being read once."""
    held = engine.prefill([row[:length] for row, length in zip(_inputs()[0].tolist(), LENGTHS, strict=True)])
    return [engine.next_tokens(held, step[:, 0], step[:, -1]) for step in _said()]


def _after(engine: MegatronEngine, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    tokens, shown = _inputs()
    if engine.config.model.is_encoder_decoder:
        mask = np.ones(targets.shape, np.float32)
        rows = Rows(tokens[inputs], targets, mask, decoder_tokens=targets, attention_mask=shown[inputs])
        return engine.logits(rows)[0][:, -1].log_softmax(-1).numpy()
    found = []
    for row, target in zip(inputs, targets, strict=True):
        ids = np.concatenate([tokens[row, : LENGTHS[row]], target])[None]
        prefix = None if engine.config.objective.predicts_next else np.arange(ids.shape[1])[None] < LENGTHS[row]
        rows = Rows(ids, ids, np.ones(ids.shape, np.float32), attention_mask=prefix)
        found.append(engine.logits(rows)[0][0, -1].log_softmax(-1).numpy())
    return np.stack(found)


def _greedy(engine: MegatronEngine) -> list[tuple[list[int], list[int]]]:
    """Tokens for each input from greedy decoding of all inputs together, and from a new forward pass over all tokens
    before each one."""
    inputs = [row[:length] for row, length in zip(_inputs()[0].tolist(), LENGTHS, strict=True)]
    requests = [DecodeRequest(ids, START, STEPS, "") for ids in inputs]
    found = []
    for row, (text,) in enumerate(sample(engine, requests, Sampling(), Stops())):
        targets = [START]
        for _ in range(STEPS):
            targets.append(int(_after(engine, np.array([row]), np.array([targets]))[0].argmax()))
        found.append((text.tokens, targets[1:]))
    return found


FOLLOWS = np.array([0, 0, 1, 2, 2])  # of continuations that are scored, which input each is of
FOLLOWING = 4


def _continuations() -> np.ndarray:
    """[continuations, positions] ids, the first of which is the decoder's start."""
    tokens = np.random.default_rng(4).integers(0, VOCABULARY, (len(FOLLOWS), FOLLOWING))
    tokens[:, 0] = START
    return tokens


def _followed(engine: MegatronEngine, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the engine says of labels after continuations that share their inputs."""
    held = engine.prefill([row[:length] for row, length in zip(_inputs()[0].tolist(), LENGTHS, strict=True)])
    return engine.score_continuations(held, FOLLOWS, _continuations(), labels)


def _follows_anew(engine: MegatronEngine) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(labels, of which some are the most probable; their log probabilities; whether they are the most probable), all
    being read anew."""
    tokens = _continuations()
    says = np.stack([_after(engine, FOLLOWS, tokens[:, : t + 1]) for t in range(FOLLOWING)], axis=1)
    labels = np.where(tokens % 2 > 0, says.argmax(-1), tokens)
    return labels, np.take_along_axis(says, labels[..., None], -1)[..., 0], says.argmax(-1) == labels


@dataclass
class Alone:
    """What one rank says of a model."""

    decoded: list[np.ndarray]
    anew: list[np.ndarray]
    """an input and all of a target being read at once"""
    greedy: list[tuple[list[int], list[int]]]
    labels: np.ndarray
    followed: tuple[np.ndarray, np.ndarray]
    follows_anew: tuple[np.ndarray, np.ndarray]


def _on_one_rank(names: list[str]) -> dict[str, Alone]:
    found = {}
    for name in names:
        engine = _engine(name, {})
        anew = [_after(engine, step[:, 1], step[:, 2:]) for step in _said()]
        labels, *follows_anew = _follows_anew(engine)
        followed = _followed(engine, labels)
        found[name] = Alone(_decoded(engine), anew, _greedy(engine), labels, followed, tuple(follows_anew))
        meet_again()
    return found


def _on_two_ranks(cases: list[tuple[str, dict[str, Any]]], labels: dict[str, np.ndarray]) -> list[Any]:
    """Decoded steps and scores of labels for each case."""
    found = []
    for name, parallel in cases:
        engine = _engine(name, parallel)
        found.append((_decoded(engine), _followed(engine, labels[name])))
        meet_again()
    return found


NAMES = [
    *("gpt", "rotary", "decoder-lm", "prefix-lm", "t5", "bart", "transformer", "bloom", "gemma2"),
    *classics.names("DECODERS"),
    "latent",
    *("rnn", "rnn-bahdanau", "rnn-lm"),
]
QUICK = ("gpt", "prefix-lm", "t5", *classics.names("DECODERS"), "latent", "rnn-bahdanau")
TENSOR, PIPELINE = {"tensor": 2, "sequence": True}, {"pipeline": 2}
SHARED: list[tuple[str, dict[str, Any]]] = [
    ("gpt", TENSOR), ("decoder-lm", TENSOR), ("prefix-lm", PIPELINE), ("t5", TENSOR), ("t5", PIPELINE),
    ("bart", PIPELINE), ("bloom", TENSOR), ("latent", TENSOR),
    *((family, TENSOR) for family in classics.names("DECODERS")),
]  # fmt: skip
QUICK_CASES = [number for number, (name, _) in enumerate(SHARED) if name in QUICK]


@pytest.fixture(scope="module")
def alone(request: pytest.FixtureRequest) -> dict[str, Alone]:
    names = asked(request, "name") | {SHARED[case][0] for case in asked(request, "case")}
    return run_ranks(1, _on_one_rank, sorted(names))[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest, alone: dict[str, Alone]) -> list[dict[int, Any]]:
    """Results by rank and case."""
    cases, labels = sorted(asked(request, "case")), {name: one.labels for name, one in alone.items()}
    found = run_ranks(2, _on_two_ranks, [SHARED[case] for case in cases], labels)
    return [dict(zip(cases, results, strict=True)) for results in found]


def _departure(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _assert_near(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    departures = [_departure(ours, theirs) for ours, theirs in zip(found, expected, strict=True)]
    assert max(departures) <= TOLERANCE, departures
    assert np.ptp(expected[-1], axis=0).max() > 0.1, "hypotheses differ"


@pytest.mark.parametrize("name", only(QUICK, NAMES))
def test_each_position_is_read_once(name: str, alone: dict[str, Alone]) -> None:
    _assert_near(alone[name].decoded, alone[name].anew)


@pytest.mark.parametrize(
    "case", only(QUICK_CASES, range(len(SHARED))), ids=[f"{name}-{'-'.join(p)}" for name, p in SHARED]
)
def test_ranks_that_share_a_model_say_the_same_to_the_bit_and_what_one_says(
    case: int, shared: list[dict[int, Any]], alone: dict[str, Alone]
) -> None:
    name = SHARED[case][0]
    (first, followed), (second, also) = shared[0][case], shared[1][case]
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(first, second, strict=True))
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(followed, also, strict=True))
    _assert_near(first, alone[name].anew)
    _assert_follows(followed, alone[name])


@pytest.mark.parametrize("name", only(QUICK, NAMES))
def test_continuations_of_one_input_are_scored_as_if_each_were_read_alone(name: str, alone: dict[str, Alone]) -> None:
    _assert_follows(alone[name].followed, alone[name])


def _assert_follows(found: tuple[np.ndarray, np.ndarray], expected: Alone) -> None:
    (log_probability, greedy), (anew, most) = found, expected.follows_anew
    assert _departure(log_probability, anew) <= TOLERANCE
    np.testing.assert_array_equal(greedy, most)
    assert 0 < greedy.sum() < greedy.size


@pytest.mark.parametrize("name", only(QUICK, NAMES))
def test_greedy_is_the_most_probable_token_of_whole_forward_passes(name: str, alone: dict[str, Alone]) -> None:
    for said, anew in alone[name].greedy:
        assert said == anew
    assert len({tuple(said) for said, _ in alone[name].greedy}) > 1


def _filled(parallels: list[dict[str, Any]]) -> list[np.ndarray]:
    """The most probable tokens of a masked encoder's inputs, one of them padded; of one rank, by its logits."""
    found = []
    tokens, shown = _inputs()
    rows = Rows(tokens, np.zeros_like(tokens), shown.astype(np.float32), attention_mask=shown)
    for parallel in parallels:
        engine = _engine("bert", parallel)
        found.append(engine.argmax_tokens(rows) if parallel else engine.logits(rows)[0].argmax(-1).numpy())
        meet_again()
    return found


def test_what_an_encoder_takes_for_most_probable_is_the_largest_of_its_logits() -> None:
    (expected,) = run_ranks(1, _filled, [{}])[0]
    assert expected.shape == (3, INPUTS)
    for found in run_ranks(2, _filled, [TENSOR, PIPELINE]):
        for tokens in found:
            np.testing.assert_array_equal(tokens, expected)


def _splits_sequences() -> tuple[int, int, int]:
    """How many modules split sequences over tensor ranks before, while and after text is made, where megatron-core
    remembers something of another model at the same address."""
    engine = _engine("gpt", TENSOR)
    megatron_utils._sequence_parallel_attr_cache = {id(chunk): {} for chunk in engine.bare}

    names = ("sequence_parallel", "scatter_to_sequence_parallel", "reduce_scatter_embeddings")
    modules = [module for chunk in engine.bare for module in chunk.modules()]

    def count() -> int:
        return sum(getattr(module, name, False) is True for module in modules for name in names)

    before = count()
    with engine._runner.without_sequence_parallel():
        inside = count()
    return before, inside, count()


def test_text_is_made_without_splitting_sequences_also_by_the_second_engine_of_a_process() -> None:
    for before, inside, after in run_ranks(2, _splits_sequences):
        assert inside == 0 < before == after


def _beyond() -> list[str]:
    """What is said of texts with more positions than the model has: one that is read, and one that grows."""
    engine, said = _engine("gpt", {}), []
    most = engine.config.model.sequence_length
    for reads, longest in (([START] * (most + 1), 1), ([START] * (most - 2), 8)):
        request = DecodeRequest(reads=reads, start=START, longest=longest, stream="beyond")
        with pytest.raises(ConfigError) as error:
            sample(engine, [request], Sampling(temperature=1.0), Stops())
        said.append(str(error.value))
    return said


def test_a_text_with_more_positions_than_the_model_is_refused() -> None:
    ((read, grown),) = run_ranks(1, _beyond)
    most = tiny_config().model.sequence_length
    assert read == f"a text of {most + 1} tokens does not fit the model, which has {most} positions: shorten it"
    assert grown == read
