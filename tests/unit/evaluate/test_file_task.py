"""Task files of a user's own: what they can say, and the sentence where they say something wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from docs.make.tasks import tasks_page
from pretrain.errors import ConfigError
from pretrain.evaluate.tasks.base import Sources
from pretrain.evaluate.tasks.filters import FILTERS
from pretrain.evaluate.tasks.registry import NAMES, task_named
from tests.unit.evaluate.fakes import ToyTokenizer

TASK = """
task: colours
task_alias: Colours
dataset_path: json
dataset_kwargs: {data_files: {test: colours.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{ thing }} is"
doc_to_choice: colours
doc_to_target: right
metric_list: [{metric: acc}]
"""
LINE = {"thing": "Grass", "colours": ["red", "green"], "right": 1, "use": True}


def load(folder: Path, text: str, *lines: object) -> object:
    (folder / "task.yaml").write_text(text)
    (folder / "colours.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines or (LINE,)))
    task_named.cache_clear()
    task = task_named(str(folder / "task.yaml"))
    return task.load(Sources(folder, None, ToyTokenizer(), 0))  # type: ignore[arg-type]


def test_a_file_of_ones_own_is_a_task(tmp_path: Path) -> None:
    loaded = load(tmp_path, TASK)
    (document,) = loaded.documents  # type: ignore[attr-defined]
    assert [choice.context + choice.target for choice in document.choices] == ["Grass is red", "Grass is green"]
    assert document.right == (1,)
    assert replace(document, right=()).target == " green"


def test_lines_may_be_left_out(tmp_path: Path) -> None:
    lines = [LINE, {**LINE, "use": False}, {**LINE, "use": "no"}]
    loaded = load(tmp_path, TASK + "metadata: {pretrain: {keep_if: use}}\n", *lines)
    assert len(loaded.documents) == 1  # type: ignore[attr-defined]
    (problem,) = loaded.problems  # type: ignore[attr-defined]
    assert (problem.where, problem.what) == ("colours.jsonl:3", "keep_if is 'no', neither true nor false")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("doc_to_text: ", "doc_to_txt: ", r"did you mean.*doc_to_text"),
        ("doc_to_choice: colours\n", "", "output_type multiple_choice needs `doc_to_choice`"),
        ("test_split: test\n", "", "name the split of the questions: `test_split` or `validation_split`"),
        ("{test: colours.jsonl}", "{train: colours.jsonl}", "data_files names no file of split test"),
        ("dataset_path: json", "dataset_path: a/b", "goes with `dataset_path: json`"),
        (
            "multiple_choice",
            "generate_until",
            "`doc_to_choice` is for output_type multiple_choice, not for generate_until",
        ),
        ("multiple_choice", "chance", "output_type"),
        ('"{{ thing }} is"', '"{{ thing is"', "task.yaml: doc_to_text: "),
        ('"{{ thing }} is"', '"{{ thing | loud }}"', "task.yaml: doc_to_text: No filter named 'loud'"),
        ("colours\ndoc", '"{{ colours | | x }}"\ndoc', "task.yaml: doc_to_choice: "),
        (
            "metric: acc",
            "metric: macro_f2",
            "metric macro_f2 is not supported for output_type multiple_choice: acc, acc_n",
        ),
        ("metric: acc", "metric: acc, aggregation: nanmean", "metric acc is aggregated by mean, not by nanmean"),
        ("metric: acc", "metric: acc, higher_is_better: false", "higher_is_better is True of metric acc"),
        (
            "metric_list",
            "process_results: x\nmetric_list",
            "`process_results` is a key of lm-eval that is not supported",
        ),
        ("metric_list", "process_docs: !function utils.f\nmetric_list", "process_docs: !function utils.f is Python"),
        ("metric_list", "metadata: {pretrain: {normalization: lower}}\nmetric_list", "normalization"),
        (
            "metric_list",
            "metadata: {pretrain: {normalization: squad}}\nmetric_list",
            "is for output_type generate_until",
        ),
        ("metric_list", 'metadata: {pretrain: {few_shot_template: "x"}}\nmetric_list', "not for output_type multiple_"),
        ("metric_list", "metadata: {pretrain: {paper_shot: 3}}\nmetric_list", "did you mean.*paper_shots"),
        ("metric_list", "fewshot_config: {sampler: first_n}\nmetric_list", "fewshot_config.sampler"),
        ("metric_list", "description: 'About {{ thing }}:'\nmetric_list", "`description` is not a template here"),
        ("metric_list", "include: task.yaml\nmetric_list", "includes itself through task.yaml"),
    ],
)
def test_a_file_that_declares_no_task_is_refused_in_a_sentence(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in TASK
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, TASK.replace(old, new))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"right": 2}, r"the right one of its 2 choices is \[2\]"),
        ({"right": "b"}, r"the right one of its 2 choices is \['b'\]"),
        ({"thing": 7}, "7 is not text but int"),
        ({"thing": None}, "None is not text but NoneType"),
        ({"colours": "red"}, "doc_to_choice is 'red', not a list of choices"),
        ({"colours": ["red"]}, r"doc_to_choice is \['red'\], not a list of choices"),
        ({"colours": ["red", ""]}, "doc_to_choice has '', which is no choice in text"),
    ],
)
def test_a_problem_says_what_is_wrong(change: dict[str, object], said: str, tmp_path: Path) -> None:
    loaded = load(tmp_path, TASK, LINE, {**LINE, **change})
    assert len(loaded.documents) == 1  # type: ignore[attr-defined]
    (problem,) = loaded.problems  # type: ignore[attr-defined]
    assert problem.where == "colours.jsonl:2"
    with pytest.raises(ConfigError, match=f"colours.jsonl:1: .*{said}"):
        load(tmp_path, TASK, {**LINE, **change})


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    loaded = load(tmp_path, TASK, LINE, {"thing": "Snow", "colours": ["a", "b"]})
    assert "'right' is undefined" in loaded.problems[0].what  # type: ignore[attr-defined]


def test_letters_of_a_text_are_no_items_of_a_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'Grass' is text, which has no items"):
        load(tmp_path, TASK.replace("{{ thing }}", "{{ thing[0] }}"))
    with pytest.raises(ConfigError, match="'Grass' is text, which has no items"):
        load(tmp_path, TASK.replace("doc_to_choice: colours", 'doc_to_choice: "{{ [thing[0], thing[1]] }}"'))


def test_templates_reach_nothing_but_the_fields(tmp_path: Path) -> None:
    for reach in ("{{ thing.__class__.__mro__[1].__name__ }}", "{{ lipsum() }}", "{{ cycler }}"):
        with pytest.raises(ConfigError, match="holds no document that can be used"):
            load(tmp_path, TASK.replace("{{ thing }} is", reach))


def test_the_guide_names_every_filter_for_general_use_and_the_page_every_task() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "add-a-task.md").read_text()
    of_one_benchmark = {
        "plain_text",
        "bold",
        "instead",
        "wikihow",
        "wikitext",
        "highlights",
        "answers_of",
        "drop_answers",
    }
    assert {name for name in FILTERS if f"`{name}" not in guide and f", `{name}" not in guide} <= of_one_benchmark
    page = tasks_page()
    assert all(f"| `{name}` (" in page for name in NAMES[1:])
    assert "| `dataset_path` | yes | " in page


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("int", [True, 1.0, "1.5", "", "x", None, [1], "9999999999"]),
        ("length", ["abc", 3, {"a": 1}, None]),
        ("trim", [None, 1, ["a"]]),
        ("filled", ["abc", [1], [None]]),
        ("wikihow", [None, []]),
    ],
)
def test_a_filter_guesses_nothing(name: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(ValueError, match="is not"):
            FILTERS[name](value)


def test_the_place_of_a_value_is_that_of_one_and_of_its_type() -> None:
    assert FILTERS["position"](["A", "B"], "B") == 1
    for values, wanted in (([1, 2], True), (["1"], 1), (["A", "A"], "A"), ([], "A")):
        with pytest.raises(ValueError, match=r"stands [02] times in"):
            FILTERS["position"](values, wanted)
    with pytest.raises(ValueError, match="'AB' is not a list"):
        FILTERS["position"]("AB", "A")


def test_nouns_stand_as_the_pronoun_did() -> None:
    text = "The man lost. His dog ran to his house."
    assert FILTERS["instead"]("The man", "his", text, text.index("his")) == "the man's"
    assert FILTERS["instead"]("The man", "His", text, text.index("His")) == "The man's"
    with pytest.raises(ValueError, match="'his' is not at character 3 of the text"):
        FILTERS["instead"]("The man", "his", text, 3)


def test_text_that_was_cut_into_words_is_put_together() -> None:
    assert FILTERS["plain_text"]("She did n't go , and \" why \" ( it 's ) ? ") == "She didn't go, and \"why\" (it's)? "
