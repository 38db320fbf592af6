"""A model that reads from right to left: its scores of a text are a forward model's of the reversed text, and it writes
to the left of a prompt."""

from typing import Any

import numpy as np
import pytest

from data_pipeline.tokenizers.byte import ByteTokenizer
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.prompts import Prompts
from pretrain.evaluate.measures.base import ForTask, Query
from pretrain.evaluate.measures.choice import ChoiceMeasure
from pretrain.evaluate.measures.perplexity import PerplexityMeasure
from pretrain.evaluate.protocol import Prompt
from pretrain.evaluate.score_draw import check_kind
from pretrain.evaluate.scorers.backward import BackwardScorer
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.scorers.make import make_scorer
from pretrain.evaluate.tasks.base import Continuation, TaskDocument
from pretrain.evaluate.tasks.registry import task_named
from tests.helpers.tiny import tiny_config
from tests.unit.evaluate.fakes import LENGTH, FakeEngine

BYTES: Any = ByteTokenizer()


@pytest.fixture
def scorers(engine: FakeEngine) -> tuple[BackwardScorer, CausalScorer]:
    config = tiny_config(objective={"name": "causal", "direction": "backward"})
    backward = make_scorer(config, engine, BYTES)  # type: ignore[arg-type]
    assert isinstance(backward, BackwardScorer)
    return BackwardScorer(engine, BYTES, LENGTH), CausalScorer(engine, BYTES, LENGTH)  # type: ignore[arg-type]


def test_a_text_is_scored_as_its_reverse_is_from_left_to_right(scorers: tuple[BackwardScorer, CausalScorer]) -> None:
    backward, forward = scorers
    for context, target in (("the cat", " is singing"), ("", "short"), ("a ", "b")):
        found = backward.score([backward.pair(context, target)])
        expected = forward.score([forward.pair("", (context + target)[::-1])])
        assert np.array_equal(found, expected)


def test_choices_are_compared_by_the_whole_text(scorers: tuple[BackwardScorer, CausalScorer]) -> None:
    backward, forward = scorers
    choices = tuple(Continuation("one two", text) for text in (" three", " four", " x"))
    document = TaskDocument("one two", " three", choices, (0,))
    measure = ChoiceMeasure(ForTask(task_named("piqa"), [document], None), backward)
    pairs = tuple(backward.pair(one.context, one.target) for one in choices)
    numbers = measure.score(backward, [Query(document, Prompt("", choices, pairs, 0, False))])
    outcome = measure.outcome(numbers[0], document)
    reverse = [forward.pair("", (one.context + one.target)[::-1]) for one in choices]
    assert np.allclose(outcome["log_probabilities"], forward.score(reverse)[:, 0], atol=1e-4)
    assert outcome["tokens"] == [13, 12, 9]
    assert outcome["chosen"].keys() == {"sum", "per_token"}


def test_long_texts_are_rated_from_their_end(scorers: tuple[BackwardScorer, CausalScorer]) -> None:
    backward, forward = scorers
    text = "the cat is singing to a dog. " * 20
    found, expected = (
        PerplexityMeasure(ForTask(task_named("wikitext"), [document], None), scorer).score(
            scorer, [Query(document, Prompt("", (), (), 0, False))]
        )
        for scorer, document in ((backward, TaskDocument("", text)), (forward, TaskDocument("", text[::-1])))
    )
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", ["lambada_openai", "arithmetic_2da", "triviaqa"])
def test_what_needs_a_target_after_its_context_is_refused(
    name: str, scorers: tuple[BackwardScorer, CausalScorer]
) -> None:
    check_kind(task_named(name), scorers[1])
    with pytest.raises(ConfigError, match=f"{name} asks for"):
        check_kind(task_named(name), scorers[0])


def test_a_prompt_is_read_from_its_end_and_text_is_written_to_its_left() -> None:
    prompts = Prompts(tiny_config(objective={"name": "causal", "direction": "backward"}), BYTES)
    request = prompts.request("the end", 5)
    assert [*request.reads, request.start] == [BYTES.end_of_text, *BYTES.encode("the end")[::-1]]
    assert prompts.generated_text(request, BYTES.encode("this is ")[::-1]) == "this is "
