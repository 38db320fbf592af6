"""Task files of lm-eval's own, as they are: the same prompts and answers as lm-eval builds of them, or a refusal that
names the key."""

import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import pytest
from lm_eval.api.metrics import exact_match_hf_evaluate
from lm_eval.api.task import ConfigurableTask
from lm_eval.filters.extraction import RegexFilter
from lm_eval.tasks._yaml_loader import load_yaml

from pretrain.errors import ConfigError
from pretrain.evaluate.tasks.base import Sources, Task, TaskDocument
from pretrain.evaluate.tasks.file_task import task_from_file
from pretrain.evaluate.tasks.normalization import exact_match, regex_filter
from tests.unit.evaluate.fakes import ToyTokenizer
from tests.unit.evaluate.task_lines import LINES

THEIRS = Path(lm_eval.__file__).with_name("tasks")
_TRIVIA = {"question": "Who made the pot?", "answer": {"aliases": ["Al", "Albert"], "value": "Al"}}
_TEXT = [{"text": "Al has a dog. It barks"}, {"text": "Bo [sic] sings"}]
_BLIMP = [
    {"sentence_good": "Al sings.", "sentence_bad": "Al sing."},
    {"sentence_good": "I am.", "sentence_bad": "I is."},
]
_WRONG = ("distractor1", "distractor2", "distractor3")
_SCIQ = [{"support": "Ice melts.", "question": "What melts?", "correct_answer": "ice", **dict.fromkeys(_WRONG, "sand")}]
FILES: dict[str, list[dict[str, Any]]] = {
    "arc/arc_easy": LINES["arc_easy"][0] * 3,
    "arc/arc_challenge": LINES["arc_challenge"][0] * 3,
    "openbookqa/openbookqa": [{**LINES["openbookqa"][0][0], "answerKey": " B"}] * 3,
    "piqa/piqa": LINES["piqa"][0] * 3,
    "super_glue/boolq/default": LINES["boolq"][0] * 3,
    "super_glue/wic/default": [{**LINES["wic"][0][0], "start1": 2, "end1": 6}] * 3,
    "super_glue/rte/default": LINES["rte"][0] * 3,
    "glue/cola/default": LINES["cola"][0] * 3,
    "glue/mrpc/default": LINES["mrpc"][0] * 3,
    "swag/swag": LINES["swag"][0] * 3,
    "anli/anli_r1": LINES["anli_r1"][0] * 3,
    "blimp/adjunct_island": _BLIMP * 2,
    "sciq/sciq": _SCIQ * 3,
    "storycloze/storycloze_2016": LINES["storycloze_2016"][0] * 3,
    "triviaqa/default": [_TRIVIA, {**_TRIVIA, "question": "Who?"}],
    "nq_open/nq_open": LINES["nq_open"][0] * 3,
    "pile/pile_arxiv": _TEXT * 2,
    "lambada/lambada_openai": _TEXT * 2,
    "unscramble/anagrams1": [{"context": "lyinevitab = ", "completion": "inevitably"}] * 3,
}


def _path(name: str) -> Path:
    path = THEIRS / name
    return path if path.exists() else path.with_name(f"{path.name}.yaml")


def their_task(path: Path, lines: list[dict[str, Any]]) -> ConfigurableTask:
    class Local(ConfigurableTask):
        def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
            names = ("training_split", "validation_split", "test_split", "fewshot_split")
            splits = {name for key in names if (name := getattr(self.config, key)) is not None}
            self.dataset = {split: datasets.Dataset.from_list(lines) for split in splits}

    return Local(config={key: value for key, value in load_yaml(path).items() if key not in ("tag", "group")})


def our_documents(path: Path, lines: list[dict[str, Any]], folder: Path) -> tuple[Task, list[TaskDocument]]:
    task = task_from_file(path)
    (folder / task.fetch[0].file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    loaded = task.load(Sources(folder, None, ToyTokenizer(), 0))  # type: ignore[arg-type]
    assert not loaded.problems
    return task, list(loaded.documents)


@pytest.mark.parametrize("name", FILES)
def test_documents_are_those_that_lm_eval_builds(name: str, tmp_path: Path) -> None:
    lines = FILES[name]
    theirs = their_task(_path(name), lines)
    task, documents = our_documents(_path(name), lines, tmp_path)
    assert task.output_types == (theirs.OUTPUT_TYPE,)
    assert len(documents) == len(lines)
    for line, document in zip(lines, documents, strict=True):
        context = task.zero_shot.description + document.context
        assert context == theirs.fewshot_context(line, 0)
        requests = theirs.construct_requests(line, context, doc_id=0, metadata=("", 0, 1))
        asked = [request.args for request in (requests if isinstance(requests, list) else [requests])]
        if theirs.OUTPUT_TYPE == "multiple_choice":
            assert [(task.zero_shot.description + c.context, c.target) for c in document.choices] == asked
            gold = theirs.doc_to_target(line)
            assert document.right == ((gold,) if isinstance(gold, int) else (theirs.doc_to_choice(line).index(gold),))
        elif theirs.OUTPUT_TYPE == "generate_until":
            assert list(task.until) == asked[0][1]["until"]
            gold = theirs.doc_to_target(line)
            assert document.references == tuple(gold if isinstance(gold, list) else [gold])
        elif theirs.OUTPUT_TYPE == "loglikelihood_rolling":
            assert ((document.target,), document.context) == (asked[0], "")
            continue
        else:
            assert (context, document.target) == asked[0]
        turn = theirs.build_qa_turn(
            q=theirs.doc_to_text(line),
            c=theirs.doc_to_choice(line) if theirs.config.doc_to_choice else None,
            a=theirs.doc_to_target(line),
            tgt_delim=theirs.config.target_delimiter,
            few_delim=theirs.config.fewshot_delimiter,
        )
        form = task.few_shot
        shown = document.context + form.example_delimiter + document.target + form.fewshot_delimiter
        assert shown == "".join(message.to_text() for message in turn)


def test_contexts_to_choose_from_are_those_that_lm_eval_builds(tmp_path: Path) -> None:
    path = tmp_path / "schemas.yaml"
    path.write_text(
        "task: schemas\ndataset_path: a/schemas\ntest_split: test\noutput_type: multiple_choice\n"
        'doc_to_text: "{{label}}"\ndoc_to_choice: "{{[begin + one, begin + other]}}"\ndoc_to_target: end\n'
        "metric_list: [{metric: acc}]\n"
    )
    lines = [{"label": 1, "begin": "It is in the ", "one": "cup", "other": "bag", "end": "that is small."}]
    theirs = their_task(path, lines)
    _, (document,) = our_documents(path, lines, tmp_path)
    requests = theirs.construct_requests(lines[0], theirs.fewshot_context(lines[0], 0), doc_id=0, metadata=("", 0, 1))
    assert [(choice.context, choice.target) for choice in document.choices] == [request.args for request in requests]
    assert document.right == (1,)


def test_included_files_are_merged_as_in_lm_eval(tmp_path: Path) -> None:
    for name in ("adjunct_island.yaml", "_template_yaml"):
        shutil.copy(THEIRS / "blimp" / name, tmp_path / name)
    task = task_from_file(tmp_path / "adjunct_island.yaml")
    assert (task.name, task.fetch[0].config) == ("blimp_adjunct_island", "adjunct_island")
    (tmp_path / "_template_yaml").write_text("include: adjunct_island.yaml\n")
    with pytest.raises(ConfigError, match=r"includes itself through adjunct_island.yaml -> _template_yaml"):
        task_from_file(tmp_path / "adjunct_island.yaml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hellaswag/hellaswag", r"process_docs: !function utils.process_docs is Python"),
        ("winogrande/default", r"doc_to_text: !function preprocess_winogrande.doc_to_text is Python"),
        ("super_glue/cb/default", r"aggregation: !function \S+ is Python"),
        ("wikitext/wikitext", r"doc_to_target: !function \S+ is Python"),
        ("gsm8k/gsm8k", r"filter_list"),
        ("squadv2/squadv2", "task|class"),
        ("mmlu/default/_mmlu", "`group` is a key of lm-eval that is not supported here"),
        ("mmlu/default/mmlu_anatomy", "fewshot_config.sampler"),
        (
            "translation/wmt14_en-fr",
            "metric ter is not supported for output_type generate_until: exact_match, f1, bleu",
        ),
    ],
)
def test_a_file_that_asks_for_more_is_refused_by_key(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task_from_file(_path(name))


@pytest.mark.parametrize("text", ["The Cat, 9 lives!", " a  dog", "An Ant", ""])
@pytest.mark.parametrize("case", [False, True])
@pytest.mark.parametrize("signs", [False, True])
def test_answers_are_compared_as_lm_eval_compares_them(text: str, case: bool, signs: bool) -> None:
    settings = {"ignore_case": case, "ignore_punctuation": signs, "ignore_numbers": signs}
    patterns = [r"\b(?:The |the |An |A |The |a |an )"]
    normalize = exact_match(regexes_to_ignore=patterns, **settings)
    for reference in ("Cat 9 lives", "cat  lives", "dog", "ant", "Cat, 9 lives!"):
        theirs = exact_match_hf_evaluate([text.strip()], [reference], regexes_to_ignore=patterns, **settings)
        assert (normalize(text) == normalize(reference)) == bool(theirs["exact_match"])


@pytest.mark.parametrize("text", ["so #### 12,000 and #### 3", "none", "#### ", "x (A) y (B)"])
@pytest.mark.parametrize("pattern", [r"#### (\-?[0-9\.\,]+)", r"(?:(\d)|\((\w)\))"])
@pytest.mark.parametrize("select", [0, -1])
def test_a_regex_extracts_what_lm_eval_extracts(text: str, pattern: str, select: int) -> None:
    ((theirs,),) = RegexFilter(pattern, select).apply([[text]], [{}])
    assert regex_filter(pattern, select, "[invalid]")(text) == theirs
