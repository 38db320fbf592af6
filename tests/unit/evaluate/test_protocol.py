"""Prompts: pure in (task, document, seed), whole shots, lm-eval's split of context and target."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretrain.errors import ConfigError
from pretrain.evaluate.harness import HarnessModel
from pretrain.evaluate.protocol import (
    Prompt,
    build_prompt,
    example_holds_answer,
    shot_indices,
    shots_from_elsewhere,
)
from pretrain.evaluate.scorers.base import answer_text, encode_pair, stops_at
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.tasks.base import Continuation, Format, Loaded, TaskDocument
from pretrain.evaluate.tasks.jsonl import LinesOnDemand, documents, text_of
from pretrain.evaluate.tasks.registry import task_named
from tests.unit.evaluate.fakes import FakeEngine, ToyTokenizer

DOCUMENTS = [TaskDocument(f"\n\nQ: What is {n}?\n\nA:", f" {n}") for n in range(20)]
_CHOICES = tuple(Continuation("Q", text) for text in (" a", " b", " c"))


def test_fewer_shots_are_the_beginning_of_more() -> None:
    eight = shot_indices("t", 3, 20, 8, seed=1).numbers
    assert [shot_indices("t", 3, 20, k, seed=1).numbers for k in range(9)] == [eight[:k] for k in range(9)]


def test_shots_are_distinct_and_never_the_question() -> None:
    for document in range(20):
        assert sorted([*shot_indices("t", document, 20, 19, seed=0).numbers, document]) == list(range(20))


def test_shots_differ_by_document_task_and_seed() -> None:
    drawn = [
        tuple(shot_indices(task, document, 99, 8, seed=seed).numbers)
        for task, document, seed in [("t", 1, 0), ("t", 2, 0), ("u", 1, 0), ("t", 1, 1)]
    ]
    assert len(set(drawn)) == 4


def test_shots_are_the_same_in_every_process_and_release() -> None:
    assert shot_indices("lambada_openai", 7, 5153, 4, seed=0).numbers == [549, 3891, 1015, 597]


def test_too_many_shots_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="task t has 20 documents, too few for 20 shots"):
        shot_indices("t", 0, 20, 20, seed=0)


def test_shots_of_another_draw_are_others_and_of_a_training_split_any() -> None:
    assert shot_indices("t", 3, 20, 8, seed=1, draw=1) != shot_indices("t", 3, 20, 8, seed=1)
    pool = Loaded([TaskDocument("a", str(number)) for number in range(8)])
    assert sorted(shots_from_elsewhere("t", 3, pool, 8, seed=0).numbers) == list(range(8)), (
        "its own number is no other's"
    )
    with pytest.raises(ConfigError, match="task t has 8 documents to show, too few for 9 shots"):
        shots_from_elsewhere("t", 3, pool, 9, seed=0)


def test_lines_that_are_made_when_they_are_drawn_are_those_of_a_file_read_whole(tmp_path: Path) -> None:
    """Broken ones are passed over, and told with their numbers; where there are none, all draws are the same."""
    lines = [json.dumps({"word": f"w{number}"}) for number in range(12)]
    (tmp_path / "good.jsonl").write_text("\n\n".join(lines))
    made: list[str] = []

    def make(fields: dict[str, Any], where: str) -> list[TaskDocument]:
        made.append(where)
        return [TaskDocument("", text_of(fields, "word"), where=where)]

    whole = Loaded(*documents(tmp_path / "good.jsonl", make))
    made.clear()
    lazy = LinesOnDemand(tmp_path / "good.jsonl", make, "")
    drawn = [shots_from_elsewhere("t", number, lazy, 2, seed=0).numbers for number in (0, 1, 0)]
    assert drawn == [shots_from_elsewhere("t", number, whole, 2, seed=0).numbers for number in (0, 1, 0)]
    assert [lazy.example(place) for place in drawn[0]] == [whole.example(place) for place in drawn[0]]
    assert len(made) == len({*drawn[0], *drawn[1]}) < 12
    (tmp_path / "bad.jsonl").write_text("\n".join([*lines[:4], '{"word": 7}', *lines[4:], "{"]))
    lazy = LinesOnDemand(tmp_path / "bad.jsonl", make, "")
    assert sorted(shots_from_elsewhere("t", 5, lazy, 12, seed=0).numbers) == [0, 1, 2, 3, *range(5, 13)]
    with pytest.raises(ConfigError, match="task t has 12 documents to show, too few for 13 shots"):
        shots_from_elsewhere("t", 6, lazy, 13, seed=0)
    assert {problem.where for problem in lazy.problems} == {"bad.jsonl:5", "bad.jsonl:14"}
    assert len(lazy.problems) == 2
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match=r"empty\.jsonl holds no document that can be used: it is empty"):
        LinesOnDemand(tmp_path / "empty.jsonl", make, "")


def test_an_example_that_holds_the_answer_is_drawn_again() -> None:
    """The other examples and their order are those of the draw without it."""
    own, elsewhere = shot_indices("t", 3, 20, 9, seed=1), shots_from_elsewhere("t", 3, Loaded(DOCUMENTS), 9, seed=1)
    for drawn, again in (
        (own, shot_indices("t", 3, 20, 8, seed=1, holds_answer=lambda index: index == own.numbers[2])),
        (
            elsewhere,
            shots_from_elsewhere(
                "t", 3, Loaded(DOCUMENTS), 8, seed=1, holds_answer=lambda index: index == elsewhere.numbers[2]
            ),
        ),
    ):
        assert again.numbers == [number for number in drawn.numbers if number != drawn.numbers[2]]
        assert (drawn.redrawn, again.redrawn) == (0, 1)
    with pytest.raises(
        ConfigError, match="18 documents to show, too few for 19 shots before document 3, beside 1 with its question"
    ):
        shot_indices("t", 3, 20, 19, seed=1, holds_answer=lambda index: index == 7)


@pytest.mark.parametrize(
    ("example", "question", "holds"),
    [
        (TaskDocument("Q", " a"), TaskDocument("Q", " a"), True),
        (TaskDocument("Q ", "a"), TaskDocument("Q", " a"), True),
        (TaskDocument("Q", " b"), TaskDocument("Q", " a"), False),
        (TaskDocument("R", " a"), TaskDocument("Q", " a"), False),
        (TaskDocument("Q", " b"), TaskDocument("Q", " a", references=("a", "b")), True),
        (TaskDocument("Q", " b"), TaskDocument("Q", " a", _CHOICES, (0, 1)), True),
        (TaskDocument("Q", " c"), TaskDocument("Q", " a", _CHOICES, (0, 1)), False),
        (TaskDocument("Q a R", " b"), TaskDocument("Q", " a"), True),
        (TaskDocument("a R", " b"), TaskDocument("", "a"), False),
        (TaskDocument("", "a"), TaskDocument("", "a"), True),
    ],
)
def test_which_examples_hold_the_answer(example: TaskDocument, question: TaskDocument, holds: bool) -> None:
    """The question with any right answer; also where it is an earlier turn of the example's dialogue."""
    assert example_holds_answer(example, question) == holds


def _build(
    form: Format, shots: list[TaskDocument], document: TaskDocument, tokenizer: ToyTokenizer, length: int, room: int
) -> Prompt:
    return build_prompt(form, shots, document, CausalScorer(None, tokenizer, length), room)  # type: ignore[arg-type]


def test_prompt_joins_instruction_examples_and_question(tokenizer: ToyTokenizer) -> None:
    prompt = _build(Format("Answer:"), DOCUMENTS[1:3], DOCUMENTS[0], tokenizer, 999, 0)
    assert prompt.text == "Answer:\n\nQ: What is 1?\n\nA: 1\n\nQ: What is 2?\n\nA: 2\n\nQ: What is 0?\n\nA:"
    assert tokenizer.decode(prompt.pairs[0][0]) == prompt.text
    assert tokenizer.decode(prompt.pairs[0][1]) == " 0"
    assert not prompt.truncated


def test_lambada_is_plain_without_shots_and_has_blanks_with_them(tokenizer: ToyTokenizer) -> None:
    task, documents = (
        task_named("lambada_openai"),
        [TaskDocument("He saw the", " cat"), TaskDocument("She ate the", " pie")],
    )
    assert _build(task.format(0), [], documents[0], tokenizer, 999, 0).text == "He saw the"
    one = _build(task.format(1), documents[1:], documents[0], tokenizer, 999, 0)
    assert one.text == "Fill in blank:\n\nShe ate the ____. -> pie\n\nHe saw the ____. ->"
    assert one.continuations == (Continuation("\n\nHe saw the ____. ->", " cat"),)


@pytest.mark.parametrize("answer_tokens", [0, 9])
def test_whole_shots_are_left_out_from_the_end_until_the_prompt_fits(
    tokenizer: ToyTokenizer, answer_tokens: int
) -> None:
    form = Format("Answer:")
    for length in range(20, 120):
        prompt = _build(form, DOCUMENTS[1:9], DOCUMENTS[0], tokenizer, length, answer_tokens)
        kept = prompt.text.count("Q:") - 1
        assert prompt.text == _build(form, DOCUMENTS[1 : 1 + kept], DOCUMENTS[0], tokenizer, 999, 0).text
        room = length - max(answer_tokens, len(prompt.pairs[0][1]) - 1)
        assert len(prompt.pairs[0][0]) <= room or kept == 0
        if kept < 8:
            more = _build(form, DOCUMENTS[1 : 2 + kept], DOCUMENTS[0], tokenizer, 999, 0)
            assert len(more.pairs[0][0]) > room, "one more shot would have fitted"
        assert prompt.truncated == (kept < 8)


def test_a_question_that_does_not_fit_alone_counts_as_truncated(tokenizer: ToyTokenizer) -> None:
    assert _build(Format(), [], DOCUMENTS[0], tokenizer, 5, 0).truncated


@pytest.mark.parametrize(
    ("context", "target"),
    [
        ("He saw", " the cat"),
        ("sing", "ing"),
        ("i", "ng"),
        ("Q", ": What is now"),
        ("a ", "b"),
        ("What;", " x"),
        (" th", "e"),
    ],
)
def test_pairs_split_as_lm_eval_splits_them(
    tokenizer: ToyTokenizer, engine: FakeEngine, context: str, target: str
) -> None:
    theirs = HarnessModel(engine, tokenizer, 99)._encode_pair(context, target)
    ours = encode_pair(tokenizer, context, target)
    if theirs[1]:
        assert ours == theirs
    else:  # lm-eval has nothing left to score; we score the token that both became
        assert ours == (theirs[0][: len(ours[0])], tokenizer.encode(context + target)[-1:])


def test_no_context_is_an_end_of_text(tokenizer: ToyTokenizer) -> None:
    assert encode_pair(tokenizer, "", " 1") == ([tokenizer.end_of_text], tokenizer.encode(" 1"))


def test_a_prompt_with_choices_leaves_room_for_the_longest(tokenizer: ToyTokenizer) -> None:
    choices = (Continuation("Q", " yes"), Continuation("Q", " certainly not"))
    document = TaskDocument("Q", " yes", choices, (0,))
    for length in range(20, 80):
        prompt = _build(Format(fewshot_delimiter="; "), DOCUMENTS[:4], document, tokenizer, length, 0)
        assert prompt.continuations == choices
        assert all(len(context) + len(target) - 1 <= length for context, target in prompt.pairs)
        more = _build(Format(fewshot_delimiter="; "), DOCUMENTS[: prompt.shots + 1], document, tokenizer, 999, 0)
        assert prompt.shots == 4 or len(more.pairs[1][0]) + len(more.pairs[1][1]) - 1 > length
    assert prompt.before.count("; ") == prompt.shots == 4


def test_generation_stops_at_an_end_of_text_or_a_stop_string(tokenizer: ToyTokenizer) -> None:
    stops = stops_at(tokenizer, ["\n", "ab"])
    assert stops.end([10])
    assert stops.end([tokenizer.end_of_text])
    assert stops.end(tokenizer.encode("xab"))
    assert not stops.end(tokenizer.encode("xa"))
    assert stops_at(tokenizer, []).ids == {tokenizer.end_of_text}


def test_answer_ends_before_a_stop_or_an_end_of_text(tokenizer: ToyTokenizer) -> None:
    ids = tokenizer.encode(" 12\n\nQ:")
    assert answer_text(tokenizer, ids, ["\n"]) == " 12"
    assert answer_text(tokenizer, [*ids[:2], tokenizer.end_of_text, *ids], ["\n"]) == " 1"
    assert answer_text(tokenizer, ids, []) == " 12\n\nQ:"


def test_a_begin_of_text_comes_before_every_context(
    tokenizer: ToyTokenizer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, target = encode_pair(tokenizer, "one two", " 1")
    monkeypatch.setattr(tokenizer, "begin_of_text", 7)
    assert encode_pair(tokenizer, "one two", " 1") == ([7, *context], target)
    assert encode_pair(tokenizer, "", " 1") == ([7], tokenizer.encode(" 1"))
    harness = HarnessModel(engine, tokenizer, 99)
    assert harness.prefix_token_id == 7
    assert [harness._opened(ids) for ids in ([3, 4], [7, 3, 4])] == [[7, 3, 4], [7, 3, 4]]
