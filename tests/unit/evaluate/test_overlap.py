"""Clean and dirty examples: found by a real build, matched by their words, and counted by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import GPT2LMHeadModel

from data_pipeline.batch import Rows
from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.overlap.contamination import SearchedSet, searched_sets
from data_pipeline.overlap.examples import EvaluationSet
from data_pipeline.overlap.gram_index import example_hashes
from pretrain.engine.base import Scores
from pretrain.evaluate.evaluator import Evaluation, evaluate, read
from pretrain.evaluate.overlap import overlap, searched_now
from pretrain.evaluate.report.write import write
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.settings import EvalSettings
from pretrain.evaluate.tasks.base import Sources
from pretrain.evaluate.tasks.registry import task_named
from tests.unit.evaluate.fakes import LENGTH, FakeEngine, Silent, ToyTokenizer, on_ranks
from tests.unit.evaluate.report.pages import FACTS, Page, many

DIRTY = (3, 7)
"""The passages of `data_dir` on Ann and Eve, and on Ben and Eve."""


class KnowsAnn(FakeEngine):
    """Answers rightly where the passage, as shown, begins with Ann."""

    def __init__(self) -> None:
        super().__init__(model=None)  # type: ignore[arg-type]
        self.decodes = False

    def score(self, batch: Rows) -> Scores:
        about_ann = (batch.tokens[:, :3] == list(b"Ann")).all(axis=1)
        return Scores(np.full(batch.labels.shape, -1.0), np.repeat(about_ann[:, None], batch.labels.shape[1], axis=1))


def _passages(data_dir: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (data_dir / "lambada_test.jsonl").read_text().splitlines()]


def _build(folder: Path, planted: list[str], against: list[dict[str, Any]] | None) -> Dataset:
    """A dataset whose text held `planted`, in its training part; `against` None: nobody looked, and it still does."""
    draw = np.random.default_rng(0)
    noise = [" ".join(f"w{number}" for number in draw.integers(0, 99, 60)) for _ in range(30)]
    documents = [f"{before} {text} {before}" for before, text in zip(noise, [*planted, *[""] * 30], strict=False)]
    folder.mkdir()
    (folder / "text.txt").write_text("\n\n".join(documents))
    config = BuildConfig(
        input=str(folder / "text.txt"), output=folder / "set", tokenizer={"type": "bytes"}, workers=1,
        txt_documents="paragraph", validation_fraction=0.3,
        steps=[{"name": "decontaminate", "against": against}] if against is not None else [],
    )  # fmt: skip
    assert build(config, Silent)
    return Dataset(folder / "set")


def _scored(settings: EvalSettings) -> Evaluation:
    engine = KnowsAnn()
    return evaluate(engine, CausalScorer(engine, ToyTokenizer(), LENGTH), None, ["lambada_openai"], settings)  # type: ignore[arg-type]


@pytest.fixture
def evaluation(data_dir: Path) -> Evaluation:
    settings = EvalSettings(shots=(0,), data_dir=data_dir)
    return _scored(settings)


@pytest.fixture
def lambada(data_dir: Path, tmp_path: Path) -> Dataset:
    passages = _passages(data_dir)
    planted = [passages[number].lower().replace(".", " --") for number in DIRTY]
    return _build(tmp_path / "a", planted, [{"name": "lambada", "files": str(data_dir / "lambada_test.jsonl")}])


def test_planted_examples_are_dirty_and_accuracy_is_that_of_a_hand_count(
    evaluation: Evaluation, lambada: Dataset, tmp_path: Path
) -> None:
    write(tmp_path / "out", evaluation, FACTS, overlap=overlap(evaluation, {"mine": searched_sets(lambada)}))
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["results"] == evaluation.results
    assert report["overlap"]["unknown"] is None
    found = report["overlap"]["tasks"]["lambada_openai"]
    assert [found[name] for name in ("documents", "dirty", "clean", "unknown")] == [15, 2, 13, 0]
    (facts,) = found["sets"]
    assert (facts["dataset"], facts["name"], facts["ngram"], facts["examples"]) == ("mine", "lambada", 12, 15)
    assert (facts["dirty"], facts["dirty_fraction"], facts["removed"]["ngram"]) == (2, 2 / 15, 13)
    # Five passages begin with Ann; one of them is dirty.
    part = found["shots"]["0"]
    for name, right, of in (("all", 5, 15), ("clean", 4, 13), ("dirty", 1, 2)):
        assert (part[name]["documents"], part[name]["accuracy_count"], part[name]["accuracy"]) == (
            of,
            right,
            right / of,
        )
        assert part[name]["accuracy_stderr"] == pytest.approx(math.sqrt(right / of * (1 - right / of) / (of - 1)))
    assert part["all"]["accuracy"] == report["results"]["lambada_openai"]["0"]["accuracy"]
    assert (part["metric"], part["clean_minus_all"]) == ("accuracy", 4 / 13 - 5 / 15)
    text = " ".join(Page((tmp_path / "out" / "report.html").read_text()).text.split())
    assert "lambada_openai 2 of 15 (13 %) 0 33.3 ± 12.6 % 30.8 ± 13.3 % 50.0 ± 50.0 % -2.6 points" in text
    assert "mine held 2 of 15 examples (13 %; N = 12)" in text
    assert (
        "Runs of 13 words that an evaluation example holds were removed before training; shorter ones were left" in text
    )


def test_an_example_is_dirty_in_any_source_and_clean_in_all_of_them(
    evaluation: Evaluation, lambada: Dataset, data_dir: Path, tmp_path: Path
) -> None:
    passages = _passages(data_dir)
    (tmp_path / "ten.jsonl").write_text("".join(json.dumps(text) + "\n" for text in passages[:10]))
    ten = _build(tmp_path / "b", [passages[0]], [{"files": str(tmp_path / "ten.jsonl")}])
    sets = {"a": searched_sets(lambada), "b": searched_sets(ten)}
    found = overlap(evaluation, sets)["tasks"]["lambada_openai"]
    assert [found[name] for name in ("dirty", "clean", "unknown")] == [3, 7, 5]
    assert [one["name"] for one in found["sets"]] == ["lambada", "ten"]
    (part,) = found["shots"].values()
    assert [part[name]["accuracy_count"] for name in ("all", "clean", "dirty")] == [5, 3, 2]
    found = overlap(evaluation, {"a": searched_sets(lambada), "c": []})["tasks"]["lambada_openai"]
    assert [found[name] for name in ("dirty", "clean", "unknown")] == [2, 0, 13]
    assert found["shots"]["0"]["clean"] == {
        "documents": 0, "accuracy_count": 0, "accuracy": None, "accuracy_stderr": None
    }  # fmt: skip
    assert found["shots"]["0"]["clean_minus_all"] is None


def test_the_questions_alone_are_a_set_too_and_the_largest_match_is_taken(
    evaluation: Evaluation, data_dir: Path, tmp_path: Path
) -> None:
    passages = _passages(data_dir)
    lines = [{"question": text.rpartition(" ")[0], "answer": text.rpartition(" ")[2]} for text in passages]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "few.jsonl").write_text(json.dumps(passages[2]) + "\n")
    against = [
        {"files": str(tmp_path / "few.jsonl")},
        {"files": str(tmp_path / "questions.jsonl"), "fields": ["question"]},
    ]
    dataset = _build(tmp_path / "a", [passages[14].rpartition(" ")[0]], against)
    found = overlap(evaluation, {"a": searched_sets(dataset)})["tasks"]["lambada_openai"]
    assert [one["name"] for one in found["sets"]] == ["questions"]
    assert [found[name] for name in ("dirty", "clean", "unknown")] == [1, 14, 0]


def test_the_shards_of_a_dataset_are_searched_as_they_are(
    evaluation: Evaluation, model: GPT2LMHeadModel, data_dir: Path, tmp_path: Path
) -> None:
    """Data ranks share the search, which covers all documents of the tasks although only some are scored."""
    passages = [_passages(data_dir)[number].lower().replace(".", " --") for number in DIRTY]
    dataset = _build(tmp_path / "a", passages, None)
    held = [tokens for _, tokens in dataset.documents("train")]
    text = " ".join(dataset.tokenizer().decode(tokens) for tokens in held)
    assert all(passage in text for passage in passages), "in the training split"

    tasks = ["lambada_openai", "reversed_words"]

    def search(engine: FakeEngine) -> list[SearchedSet]:
        scorer = CausalScorer(engine, ToyTokenizer(), LENGTH)  # type: ignore[arg-type]
        return searched_now(
            engine, read(scorer, None, tasks, EvalSettings(shots=(0,), data_dir=data_dir, limit=3)), dataset
        )

    for lambada, reversed_words in on_ranks(model, 3, search):
        assert (lambada.name, lambada.ngram, lambada.examples, lambada.dirty) == ("lambada_openai", 12, 15, 2)
        assert (reversed_words.ngram, reversed_words.short, reversed_words.dirty) == (3, 0, 0), "made by a rule"
    found = overlap(evaluation, {"shards": search(FakeEngine(model))})
    write(tmp_path / "out", evaluation, FACTS, overlap=found)
    assert [found["tasks"]["lambada_openai"][name] for name in ("dirty", "clean", "unknown")] == [2, 13, 0]
    text = " ".join(Page((tmp_path / "out" / "report.html").read_text()).text.split())
    assert "shards held 2 of 15 examples (13 %; N = 12). Its training shards were searched as they are" in text
    assert "were removed before training" not in text


@pytest.mark.parametrize("searched", [{}, {"a": []}, {"a": "other"}])
def test_a_task_that_no_set_holds_is_not_known(
    evaluation: Evaluation, searched: dict[str, Any], tmp_path: Path
) -> None:
    foreign = SearchedSet.read(
        {
            "name": "b",
            "ngram": 8,
            "examples": 1,
            "short": 0,
            "dirty": 0,
            "dirty_examples": [],
            "hashes": "AQAAAAAAAAA=",
        },
        {},
    )
    sets = {name: [foreign] if given else [] for name, given in searched.items()}
    unknown = None if sets else "the data is gone"
    held = overlap(evaluation, sets, unknown)
    assert held["tasks"]["lambada_openai"] == {
        "documents": 15, "dirty": 0, "clean": 0, "unknown": 15, "sets": [], "shots": {}
    }  # fmt: skip
    write(tmp_path, evaluation, FACTS, overlap=held)
    text = " ".join(Page((tmp_path / "report.html").read_text()).text.split())
    assert f"Not known for lambada_openai: {unknown or 'not all of the training text was searched'}" in text
    assert "Shares of right answers" not in text


@pytest.mark.parametrize(("least", "unknown"), [(8, 6), (1, 0)])
def test_examples_too_short_to_be_looked_for_are_not_known(
    data_dir: Path, tmp_path: Path, least: int, unknown: int
) -> None:
    documents = task_named("reversed_words").load(Sources(data_dir, None, ToyTokenizer(), 0)).documents  # type: ignore[arg-type]
    scored = Evaluation(
        results={"reversed_words": {"0": {"metric": "exact_match"}}},
        samples={},
        documents={"reversed_words": documents},
        right={"reversed_words": {"0": [True] * 6}},
        problems={},
    )
    files = str(data_dir / "**" / "reversed_words*")
    dataset = _build(tmp_path / "a", [], [{"files": files, "least_words": least}])
    found = overlap(scored, {"a": searched_sets(dataset)})["tasks"]["reversed_words"]
    assert [found[name] for name in ("dirty", "clean", "unknown")] == [0, 6 - unknown, unknown]


def test_of_a_limit_only_what_was_scored_counts(data_dir: Path, lambada: Dataset) -> None:
    settings = EvalSettings(shots=(0, 1), data_dir=data_dir, limit=5)
    few = _scored(settings)
    found = overlap(few, {"a": searched_sets(lambada)})["tasks"]["lambada_openai"]
    assert [found[name] for name in ("documents", "dirty", "clean")] == [5, 1, 4]
    assert list(found["shots"]) == ["0", "1"]


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ("hellaswag", "accuracy_per_token"),
        ("cb", "accuracy_sum"),
        ("coqa", "exact_match"),
        ("wmt14_en_fr", "exact_match"),
    ],
)
def test_parts_of_a_task_are_compared_by_a_share_of_right_answers(task: str, metric: str) -> None:
    """Its own metric where that is one."""
    evaluation = many(only=[task])
    documents = evaluation.documents[task]
    hashes = example_hashes([document.context + document.target for document in documents])
    known = SearchedSet(
        name="all", ngram=13, examples=len(hashes), short=0, dirty=0, removed={}, hashes=hashes, dirty_hashes=hashes[:0]
    )
    found = overlap(evaluation, {"a": [known]})["tasks"][task]["shots"]["0"]
    right = evaluation.right[task]["0"]
    assert (found["metric"], found["all"][metric], found["clean_minus_all"]) == (metric, sum(right) / len(right), 0)


def test_a_text_without_a_right_answer_is_counted_but_not_compared() -> None:
    evaluation = many(only=["ptb"])
    hashes = example_hashes([document.context + document.target for document in evaluation.documents["ptb"]])
    known = SearchedSet(
        name="all", ngram=13, examples=1, short=0, dirty=1, removed={}, hashes=hashes, dirty_hashes=hashes
    )
    found = overlap(evaluation, {"a": [known]})["tasks"]["ptb"]
    assert (found["dirty"], found["shots"]) == (1, {})


def test_documents_that_could_not_be_asked_are_in_no_share() -> None:
    evaluation = many(only=["coqa"])
    evaluation.right["coqa"]["0"] = [None] * 15 + [True, True, True, True, False]
    documents = evaluation.documents["coqa"]
    hashes = example_hashes([document.context + document.target for document in documents])
    known = SearchedSet(
        name="all", ngram=13, examples=len(hashes), short=0, dirty=0, removed={}, hashes=hashes, dirty_hashes=hashes[:0]
    )
    found = overlap(evaluation, {"a": [known]})["tasks"]["coqa"]["shots"]["0"]
    assert (found["all"]["documents"], found["all"]["exact_match"]) == (5, 0.8)
    assert (found["clean"]["documents"], found["dirty"]["documents"]) == (5, 0)


def test_examples_are_numbered_by_the_lines_that_are_not_blank(tmp_path: Path) -> None:
    texts = ["one\u2028line separator", "two\x85next line", "and three"]
    lines = "\n\n \n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts)
    path = tmp_path / "lambada_test.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + lines.encode())
    assert _hashes("lambada_openai", tmp_path) == example_hashes(EvaluationSet(files=str(path)).sets()[0][1]).tolist()
    assert len(_hashes("lambada_openai", tmp_path)) == 3


@pytest.mark.parametrize(("task", "file", "examples"), [
    ("lambada_openai", "lambada_test.jsonl", 5153), ("arithmetic_2da", "two_digit_addition.jsonl", 2000),
    ("reversed_words", "reversed_words.jsonl.gz", 10_000),
])  # fmt: skip
def test_tasks_of_published_files_have_their_examples_in_order(
    benchmarks: Path, task: str, file: str, examples: int
) -> None:
    ((_, texts),) = EvaluationSet(files=[str(path) for path in benchmarks.rglob(file)]).sets()
    assert len(texts) == examples
    assert _hashes(task, benchmarks) == example_hashes(texts).tolist()


def _hashes(task: str, folder: Path) -> list[int]:
    documents = task_named(task).load(Sources(folder, None, ToyTokenizer(), 0)).documents  # type: ignore[arg-type]
    hashes: list[int] = example_hashes([document.context + document.target for document in documents]).tolist()
    return hashes
