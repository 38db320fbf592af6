"""The task files: what they make of lines in their benchmark's form, and of lines that are not."""

import copy
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pretrain.errors import ConfigError
from pretrain.evaluate.measures.choice import ChoiceMeasure
from pretrain.evaluate.measures.group_metrics import GROUP_METRICS
from pretrain.evaluate.tasks.base import Loaded, Sources, Task
from pretrain.evaluate.tasks.registry import FILES, task_named
from tests.helpers.breadth import slow
from tests.unit.evaluate.fakes import ToyTokenizer
from tests.unit.evaluate.task_lines import LINES

SOURCES = Sources(None, None, ToyTokenizer(), seed=0)  # type: ignore[arg-type]
NAMES = sorted(FILES)
ROUNDS = [30, slow(120)]  # mutations of each task


def load(task: Task, lines: list[Any], folder: Path) -> Loaded:
    file = _file_of(task)
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (folder / file).write_text(text)
    return task.load(replace(SOURCES, data_dir=folder))


def _file_of(task: Task) -> str:
    return task.fetch[0].file if task.fetch else f"{task.name}_test.jsonl"


def test_every_task_file_has_an_example_line_here() -> None:
    assert sorted(LINES) == NAMES
    assert len(NAMES) == 56


@pytest.mark.parametrize("name", NAMES)
def test_a_line_becomes_the_document_that_the_paper_shows(name: str, tmp_path: Path) -> None:
    task, (lines, expected) = task_named(name), LINES[name]
    loaded = load(task, lines, tmp_path)
    assert loaded.problems == []
    last = loaded.documents[-1]
    shown = task.few_shot.example(last)
    assert shown.context + shown.target == expected
    assert task.name == name
    assert task.title
    assert task.source
    if task.output_types == ("multiple_choice",):
        first = last.choices[last.right[0]]
        assert (first.context, first.target) == (last.context, last.target)
        assert len({(choice.context, choice.target) for choice in last.choices}) == len(last.choices) > 1


@pytest.mark.parametrize("name", NAMES)
def test_the_metric_of_a_task_is_one_that_its_measure_gives(name: str) -> None:
    task = task_named(name)
    if task.metric in GROUP_METRICS:
        return
    ways = {"accuracy_sum", "accuracy_per_token", "accuracy_per_character", "accuracy_per_byte"}
    if task.unconditional_context is not None:
        ways.add("accuracy_unconditional")
    given = {
        "multiple_choice": ways,
        "generate_until": {"exact_match", "bleu", "f1", "gleu", "rougeLsum"},
        "loglikelihood_rolling": {"token_perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"},
    }
    assert task.metric in given[task.output_types[0]]
    assert ChoiceMeasure.name == "choice"


def test_what_documents_hold_besides_the_prompt(tmp_path: Path) -> None:
    def last(name: str) -> Any:
        return load(task_named(name), LINES[name][0], tmp_path).documents[-1]

    assert last("multirc").group == "3 5"
    assert last("blimp").group == "wh_island"
    assert last("coqa").references == ("yes", "Yes")
    assert last("quac").references == ("CANNOTANSWER",)
    assert last("drop").references == ("2", "1 May", "two, miles")
    assert last("triviaqa").references == ("Al", "Albert")
    assert last("record").right == (1,)
    assert [choice.context[-4:] for choice in last("winogrande").choices] == [" cup", " bag"]
    assert last("wikitext").references == (" = Dee = \n The Dee , 110 @,@ 000 m long . ",)
    french = task_named("wmt14-fr-en")
    document = load(french, LINES["wmt14-fr-en"][0], tmp_path).documents[0]
    assert french.zero_shot.example(document).context == "Q: What is the English translation of Text in fr.\nA:"
    assert (last("jfleg").original, last("jfleg").references) == ("I eated tea .", ("I ate tea .", "I had tea ."))
    assert [choice.target for choice in last("cbt_ne").choices] == [" Al said.", " Bo said."]
    assert last("anli_r2").where == "anli_r2_test.jsonl:1"


def test_shots_come_from_the_split_that_the_paper_takes_them_from(tmp_path: Path) -> None:
    splits = {name: [file.split for file in task_named(name).fetch] for name in NAMES}
    assert splits["hellaswag"] == ["validation", "train"]
    assert splits["storycloze_2016"] == ["test", "validation"]
    assert splits["wsc273"] == ["test"]
    assert task_named("wsc273").load_shots is None
    assert splits["anli_r3"] == ["test_r3", "train_r3"]
    piqa = task_named("piqa")
    assert piqa.load_shots is not None
    (tmp_path / "piqa_train.jsonl").write_text(json.dumps({"goal": "a", "sol1": "b", "sol2": "c", "label": 1}))
    found = piqa.load_shots(replace(SOURCES, data_dir=tmp_path)).example(0)
    assert found is not None
    assert found.target == " c"


def test_a_file_that_no_hub_has_is_asked_for_with_its_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"text8 needs text8_test.jsonl .*; Mahoney 2006, .*docs/evaluation.md"):
        task_named("text8").load(replace(SOURCES, data_dir=tmp_path))


RUBBISH = [None, True, -1, 99, 1.5, "", " ", "\x00", "\ud800", [], {}, [None], [[]], {"a": None}, ["a"], "999999999999"]


def mutate(line: dict[str, Any], draw: random.Random) -> Any:
    """The line with a field gone, or something else in its place, at any depth."""
    changed = copy.deepcopy(line)
    holders: list[Any] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict | list) and value:
            holders.append(value)
            for inner in value.values() if isinstance(value, dict) else value:
                collect(inner)

    collect(changed)
    holder = draw.choice(holders)
    key = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    if draw.random() < 0.3:
        del holder[key]
    else:
        holder[key] = draw.choice([*RUBBISH, [holder[key]], {"x": holder[key]}, json.loads("[" * 50 + "]" * 50)])
    return changed


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_mutated_line_is_used_or_told_with_its_number_and_never_stops_the_others(
    name: str, rounds: int, tmp_path: Path
) -> None:
    task, (lines, _), draw = task_named(name), LINES[name], random.Random(f"fuzz {name}")
    whole = load(task, lines, tmp_path)
    refused = 0
    for _ in range(rounds):
        at = draw.randrange(len(lines))
        bad = mutate(lines[at], draw)
        # The mutated line stands between whole ones, which are about something else.
        loaded = load(task, [*lines, bad, *lines], tmp_path)
        assert all(isinstance(d.context, str) and isinstance(d.target, str) and d.target for d in loaded.documents)
        for document in loaded.documents:
            texts = [document.context, document.target, *document.references]
            texts += [text for choice in document.choices for text in (choice.context, choice.target)]
            assert all(text.encode() is not None for text in texts), "whole characters"
            assert not any(sign in text for text in texts for sign in ("None", "True}", "[[", "{'", "Undefined"))
            assert document.right == () or 0 <= document.right[0] < len(document.choices)
        if loaded.problems:
            refused += 1
            (problem,) = [problem for problem in loaded.problems if problem.where.endswith(f":{len(lines) + 1}")]
            assert len(problem.what) < 400
            if "previous" not in FILES[name].read_text() and task.output_types != ("loglikelihood_rolling",):
                assert len(loaded.documents) == 2 * len(whole.documents)
    assert refused > rounds // 8, "what is read is checked"


@pytest.mark.parametrize("name", NAMES)
def test_lines_that_are_no_objects_are_told_by_their_own_numbers(name: str, tmp_path: Path) -> None:
    task, (lines, _) = task_named(name), LINES[name]
    whole = load(task, lines, tmp_path)
    broken = ['{"a": \n', "[1, 2]\n", "\n", "null\n", "7\n", "[" * 5000 + "\n"]
    loaded = load(task, [*broken, *lines], tmp_path)
    assert [problem.where.rpartition(":")[2] for problem in loaded.problems] == ["1", "2", "4", "5", "6"]
    assert "it is not JSON" in loaded.problems[0].what
    assert [replace(d, where="") for d in loaded.documents] == [replace(d, where="") for d in whole.documents]
    with pytest.raises(ConfigError, match="holds no document that can be used: it is empty"):
        load(task, ["\n"], tmp_path)
    with pytest.raises(ConfigError, match=r"holds no document that can be used: \S+:1: it is not JSON"):
        load(task, broken, tmp_path)
