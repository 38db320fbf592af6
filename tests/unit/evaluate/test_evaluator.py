"""Results: right, and the same whatever the batch size, the order, the limit and the number of data ranks."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

from data_pipeline.batch import Rows
from data_pipeline.dataset.dataset import Dataset
from pretrain.engine.base import Scores
from pretrain.errors import ConfigError, RunError
from pretrain.evaluate.decoding.base import Sampling
from pretrain.evaluate.evaluator import Evaluation
from pretrain.evaluate.evaluator import evaluate as evaluate_with
from pretrain.evaluate.outcomes import Outcomes
from pretrain.evaluate.report.write import write
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.settings import EvalSettings
from pretrain.evaluate.table import table
from tests.helpers.breadth import slow
from tests.unit.evaluate.fakes import LENGTH, FakeEngine, ToyTokenizer, on_ranks
from tests.unit.evaluate.report.pages import FACTS, Page

TASKS = ["lambada_openai", "reversed_words"]


def evaluate(
    engine: FakeEngine, tokenizer: Any, dataset: Dataset | None, tasks: list[str], settings: EvalSettings,
    length: int = LENGTH, tokens: int = 4096, outcomes: Outcomes | None = None,
) -> Evaluation:  # fmt: skip
    scorer = CausalScorer(engine, tokenizer, length, tokens)  # type: ignore[arg-type]
    return evaluate_with(engine, scorer, dataset, tasks, settings, outcomes=outcomes)  # type: ignore[arg-type]


@pytest.fixture
def settings(data_dir: Path) -> EvalSettings:
    return EvalSettings(shots=(0, 1, 4), data_dir=data_dir)


def assert_same(one: Any, other: Any) -> None:
    """Equal, but for the rounding of floats."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, yours in zip(one, other, strict=True):
            assert_same(mine, yours)
    else:
        assert one == (pytest.approx(other, rel=1e-5, abs=1e-7) if isinstance(one, float) else other)


def test_scores_are_the_models_own_one_document_at_a_time(
    engine: FakeEngine, tokenizer: ToyTokenizer, settings: EvalSettings
) -> None:
    result = evaluate(engine, tokenizer, None, ["lambada_openai"], settings).results["lambada_openai"]["0"]
    total, hits = 0.0, 0
    lines = (settings.data_dir / "lambada_test.jsonl").read_text().splitlines()  # type: ignore[operator]
    for line in lines:
        text = json.loads(line)["text"]
        context, whole = tokenizer.encode(text.rpartition(" ")[0]), tokenizer.encode(text)
        with torch.no_grad():
            scores = engine.model(torch.tensor([whole])).logits[0].log_softmax(-1)[len(context) - 1 : -1]
        target = torch.tensor(whole[len(context) :])
        total += scores.gather(1, target[:, None]).sum().item()
        hits += bool((scores.argmax(-1) == target).all())
    assert result["documents"] == len(lines) == 15
    assert result["log_probability_sum"] == pytest.approx(total, rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(-total / 15), rel=1e-4)
    assert (result["accuracy_count"], result["accuracy"]) == (hits, hits / 15)


def test_exact_match_counts_what_the_model_answers(learned: GPT2LMHeadModel, tokenizer: ToyTokenizer) -> None:
    settings = EvalSettings(shots=(0,), limit=24)
    scored = evaluate(FakeEngine(learned), tokenizer, None, ["arithmetic_1dc"], settings)  # type: ignore[arg-type]
    result = scored.results["arithmetic_1dc"]["0"]
    assert 12 <= result["exact_match_count"] < 24, "it knows the first 12 by heart"
    share = result["exact_match_count"] / 24
    assert result["exact_match"] == share
    assert result["exact_match_stderr"] == pytest.approx(math.sqrt(share * (1 - share) / 23))
    assert result["accuracy_count"] >= result["exact_match_count"]
    shown = scored.samples["arithmetic_1dc"]["0"]
    assert [s["right"] for s in shown].count(True) == [s["right"] for s in shown].count(False) == 2
    assert all((s["outcomes"]["text"]["answer"] == s["target"]) == s["right"] for s in shown)


@pytest.mark.parametrize("tokens", [1, 500])
def test_results_do_not_depend_on_batch_size(
    engine: FakeEngine, tokenizer: ToyTokenizer, settings: EvalSettings, tokens: int
) -> None:
    whole, other = (evaluate(engine, tokenizer, None, TASKS, settings, tokens=n).results for n in (9999, tokens))  # type: ignore[arg-type]
    assert_same(whole, other)


@pytest.mark.parametrize("world", [slow(2), 3])
def test_every_data_rank_has_the_results_of_one(
    model: GPT2LMHeadModel, tokenizer: ToyTokenizer, settings: EvalSettings, world: int
) -> None:
    def call(engine: FakeEngine) -> Evaluation:
        return evaluate(engine, tokenizer, None, TASKS, settings, tokens=1)  # type: ignore[arg-type]

    alone = call(FakeEngine(model))
    for scored in on_ranks(model, world, call):
        assert scored == alone, "rows of one: bit for bit"


def test_more_data_ranks_than_documents(
    model: GPT2LMHeadModel, tokenizer: ToyTokenizer, settings: EvalSettings
) -> None:
    few = replace(settings, limit=2, shots=(1,))
    alone, *_ = on_ranks(model, 1, lambda engine: evaluate(engine, tokenizer, None, TASKS, few))
    for scored in on_ranks(model, 3, lambda engine: evaluate(engine, tokenizer, None, TASKS, few)):
        assert_same(scored.results, alone.results)


def test_a_limit_scores_the_same_prompts_as_without(
    engine: FakeEngine, tokenizer: ToyTokenizer, settings: EvalSettings
) -> None:
    whole = evaluate(engine, tokenizer, None, TASKS, settings)  # type: ignore[arg-type]
    few = evaluate(engine, tokenizer, None, TASKS[::-1], replace(settings, limit=3, shots=(4, 1)))  # type: ignore[arg-type]
    for task in TASKS:
        for shots in ("1", "4"):
            assert few.results[task][shots]["documents"] == 3
            assert_same(few.samples[task][shots], whole.samples[task][shots])  # scored in batches of other sizes


def test_the_seed_draws_other_shots(engine: FakeEngine, tokenizer: ToyTokenizer, settings: EvalSettings) -> None:
    one, other = (evaluate(engine, tokenizer, None, TASKS, replace(settings, seed=s)).results for s in (0, 1))  # type: ignore[arg-type]
    assert one["lambada_openai"]["0"] == other["lambada_openai"]["0"]
    assert one["lambada_openai"]["4"] != other["lambada_openai"]["4"]


def test_prompts_that_do_not_fit_are_counted(
    engine: FakeEngine, tokenizer: ToyTokenizer, settings: EvalSettings
) -> None:
    results = evaluate(engine, tokenizer, None, TASKS, settings, length=128).results  # type: ignore[arg-type]
    assert results["lambada_openai"]["0"]["truncated"] == 0
    assert results["lambada_openai"]["1"]["mean_shots"] == 1
    assert results["lambada_openai"]["4"]["truncated"] == 15
    assert 0 < results["lambada_openai"]["4"]["mean_shots"] < 4


def test_a_prompt_without_room_for_its_answer_is_cut_at_its_beginning(
    engine: FakeEngine, tokenizer: ToyTokenizer
) -> None:
    long, short = [n % 200 for n in range(30)], [5, 6]
    expected = CausalScorer(engine, tokenizer, LENGTH).texts([short, long[-12:]], 4, Sampling(), ())  # type: ignore[arg-type]
    assert CausalScorer(engine, tokenizer, 16).texts([short, long], 4, Sampling(), ()) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("decodes", [True, False])
def test_a_target_keeps_its_place_when_its_context_is_cut(
    engine: FakeEngine, tokenizer: ToyTokenizer, decodes: bool
) -> None:
    engine.decodes = decodes
    context, target = list(range(40)), [7, 8, 9]
    (scored,) = CausalScorer(engine, tokenizer, 16).score([(context, target)])  # type: ignore[arg-type]
    with torch.no_grad():
        logits = engine.model(torch.tensor([(context + target)[-17:-1]])).logits[0].log_softmax(-1)
    assert scored[0] == pytest.approx(logits[-3:].gather(1, torch.tensor([[7], [8], [9]])).sum().item(), rel=1e-5)


@pytest.mark.parametrize(("wrong", "right"), [(None, 1), (1, 1), (2, 0), (3, 0), (4, 0), (5, 1)])
def test_greedy_means_every_token_of_the_target_and_no_other(
    engine: FakeEngine, tokenizer: ToyTokenizer, wrong: int | None, right: int
) -> None:
    def score(batch: Rows) -> Scores:
        shape = batch.labels.shape
        return Scores(np.zeros(shape, np.float32), np.arange(shape[1])[None] != wrong)

    engine.score, engine.decodes = score, False  # type: ignore[method-assign]
    assert CausalScorer(engine, tokenizer, 16).score([([1, 2, 3], [4, 5, 6])])[0, 1] == right  # type: ignore[arg-type]


def test_the_runs_own_text_needs_no_files(dataset: Dataset, engine: FakeEngine) -> None:
    settings = EvalSettings(shots=(0, 2))
    results = evaluate(engine, dataset.tokenizer(), dataset, ["heldout", "last_word"], settings).results
    assert results["heldout"].keys() == {"0"}
    assert results["heldout"]["0"]["token_count"] == dataset.num_tokens("validation") - 1
    assert results["last_word"].keys() == {"0", "2"}
    assert results["last_word"]["0"]["documents"] > 10


def test_results_are_plain_and_finite_json(engine: FakeEngine, dataset: Dataset) -> None:
    settings = EvalSettings(shots=(0, 1), limit=1)
    tasks = ["heldout", "last_word", "arithmetic_2dm"]
    results = evaluate(engine, dataset.tokenizer(), dataset, tasks, settings).results
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert results["arithmetic_2dm"]["1"]["accuracy_stderr"] is None, "unknown of one document"


def test_scores_that_are_not_numbers_end_the_evaluation_on_every_rank(
    model: GPT2LMHeadModel, tokenizer: ToyTokenizer, settings: EvalSettings
) -> None:
    def call(engine: FakeEngine) -> str:
        if engine.data_rank == 1:
            nothing = np.float32(np.nan)
            engine.score = lambda rows: Scores(np.full(rows.labels.shape, nothing), rows.labels > 0)  # type: ignore[method-assign]
        with pytest.raises(RunError) as caught:
            evaluate(engine, tokenizer, None, TASKS, settings)  # type: ignore[arg-type]
        return str(caught.value)

    assert all("not numbers" in message for message in on_ranks(model, 2, call))


@pytest.mark.parametrize(
    ("tasks", "changes", "message"),
    [
        (["lambda"], {}, "unknown task 'lambda'"),
        (["heldout"], {}, "give a run whose data can be read"),
        (["last_word"], {}, "give a run whose data can be read"),
        (["reversed_words"], {"shots": (6,)}, "too few for 6 shots"),
        (["reversed_words"], {"shots": (-1,)}, "numbers of examples"),
        (["reversed_words"], {"shots": ()}, "numbers of examples"),
        (["reversed_words"], {"limit": 0}, "nothing to score"),
        (["reversed_words"], {"draws": 0}, "0 draws"),
        (["lambada_openai"], {"shots": (1,), "data_dir": Path(__file__).parent}, "needs lambada_test.jsonl"),
    ],
)
def test_mistakes_are_one_sentence(
    engine: FakeEngine, tokenizer: ToyTokenizer, settings: EvalSettings, tasks: list[str], changes: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(engine, tokenizer, None, tasks, replace(settings, **changes))  # type: ignore[arg-type]


def test_every_set_of_a_task_has_a_score_of_its_own(
    engine: FakeEngine, tokenizer: ToyTokenizer, tmp_path: Path
) -> None:
    """BLiMP's phenomena; the mean over draws, where there are several."""
    pairs = [
        ("the cat sings", "the cat sing"),
        ("two cats sing", "two cats sings"),
        ("a dog is here", "a dog are here"),
    ]
    lines = [
        {"UID": name, "sentence_good": f"{good} {number}", "sentence_bad": f"{bad} {number}"}
        for number in range(4)
        for name, (good, bad) in zip(("verbs", "nouns", "verbs"), pairs, strict=True)
    ]
    (tmp_path / "blimp.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = EvalSettings(shots=(0, 2), draws=2, data_dir=tmp_path)
    outcomes = Outcomes(tmp_path / "documents.jsonl")
    scored = evaluate(engine, tokenizer, None, ["blimp"], settings, outcomes=outcomes)
    told = [json.loads(line) for line in (tmp_path / "documents.jsonl").read_text().splitlines()]
    for shots in ("0", "2"):
        result = scored.results["blimp"][shots]
        assert list(result["groups"]) == ["verbs", "nouns"]
        for name, found in result["groups"].items():
            hits = [
                one["outcomes"]["choice"]["right"]["sum"]
                for one in told
                if str(one["shots"]) == shots and lines[one["document"]]["UID"] == name
            ]
            assert found["documents"] == (8 if name == "verbs" else 4) == len(hits) // (2 if shots == "2" else 1)
            assert found["accuracy_sum"] == pytest.approx(sum(hits) / len(hits))
            assert ("accuracy_sum_spread" in found) == (shots == "2")
        weighted = sum(found["documents"] * found["accuracy_sum"] for found in result["groups"].values())
        assert weighted / 12 == pytest.approx(result["accuracy_sum"])
    write(tmp_path / "out", scored, FACTS)
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert "2 sets set documents 0-shot 2-shot verbs 8" in page.words


def test_examples_that_are_no_documents_are_told(engine: FakeEngine, tokenizer: ToyTokenizer, tmp_path: Path) -> None:
    line = '{"goal": "To dry a shirt,", "sol1": "hang it up.", "sol2": "eat it.", "label": %s}\n'
    (tmp_path / "piqa_validation.jsonl").write_text("".join(line % (number % 2) for number in range(4)))
    line = line.replace("shirt", "coat")
    (tmp_path / "piqa_train.jsonl").write_text(line % 0 + '{"goal"\n' + line % 1 + line % 7)
    scored = evaluate(engine, tokenizer, None, ["piqa"], EvalSettings(shots=(2,), data_dir=tmp_path))
    assert {one.where for one in scored.not_shown["piqa"]} <= {"piqa_train.jsonl:2", "piqa_train.jsonl:4"}
    assert scored.not_shown["piqa"], "drawn for one of four documents"
    assert scored.results["piqa"]["2"]["mean_shots"] == 2
    lines = table(scored.results, None, 1, scored.problems, scored.not_shown)
    assert "not shown: " in lines
    assert "of piqa, first piqa_train.jsonl:" in lines
    write(tmp_path / "out", scored, FACTS)
    record = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [one["where"] for one in record["not_shown"]["piqa"]] == [one.where for one in scored.not_shown["piqa"]]
    assert "as they are no documents" in (tmp_path / "out" / "report.html").read_text()


_CAPITALS = """
task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: test.jsonl, train: %s}}
test_split: test
training_split: train
output_type: loglikelihood
doc_to_text: "Q: {{ q }}?"
doc_to_target: " {{ a }}"
metric_list: [{metric: acc}]
"""


@pytest.mark.parametrize("pool", ["test.jsonl", "train.jsonl"])
def test_no_prompt_shows_its_own_answer(engine: FakeEngine, tokenizer: ToyTokenizer, tmp_path: Path, pool: str) -> None:
    """Neither where one file has two names of splits, nor where another file has the same questions. What was scored
    after other examples is scored again."""
    lines = [json.dumps({"q": q, "a": a}) + "\n" for q, a in (("Oslo", "Norway"), ("Rome", "Italy"), ("Bern", "Uri"))]
    (tmp_path / "test.jsonl").write_text("".join(lines))
    (tmp_path / "train.jsonl").write_text("".join([*lines[::-1], '{"q": "Nice", "a": "France"}\n']))
    (tmp_path / "capitals.yaml").write_text(_CAPITALS % pool)
    settings = EvalSettings(shots=(2,), data_dir=tmp_path)
    tasks, path = [str(tmp_path / "capitals.yaml")], tmp_path / "documents.jsonl"
    scored = evaluate(engine, tokenizer, None, tasks, settings, outcomes=Outcomes(path))
    result = scored.results["capitals"]["2"]
    assert 0 < result["redrawn"] <= 3
    assert result["redrawn"] == 3 or pool == "train.jsonl"
    samples = scored.samples["capitals"]["2"]
    assert samples
    for sample in samples:
        assert sample["prompt"].count("Q: ") == 3
        assert f"{sample['question']} {sample['target']}" not in sample["prompt"]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | {"shown": [0, 1]}) + "\n" for line in lines))
    again = evaluate(engine, tokenizer, None, tasks, settings, outcomes=Outcomes(path))
    assert again.results == scored.results
    assert [json.loads(line)["shown"] for line in path.read_text().splitlines()] == [line["shown"] for line in lines]
    assert f"drawn again, as they held the question and its answer: capitals 2-shot {result['redrawn']}" in " ".join(
        table(scored.results, None, 1).split()
    )
    write(tmp_path / "out", scored, FACTS)
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert f"others were drawn: capitals 2-shot {result['redrawn']}" in page.words


def test_data_ranks_that_share_weights_call_the_engine_equally_often(
    model: GPT2LMHeadModel, tokenizer: ToyTokenizer
) -> None:
    """Though one has choices that share a context, and the other targets by themselves."""
    context = list(range(60, 80))
    asked: list[list[Any]] = [[(context, [5]), (context, [6])], [(context[:length], [7]) for length in (9, 12, 15, 18)]]

    def call(engine: FakeEngine, shares: bool = True) -> tuple[list[str], list[list[float]]]:
        calls: list[str] = []
        score, follow, engine.shares_weights = engine.score, engine.score_continuations, shares
        engine.score = lambda rows: (calls.append("score"), score(rows))[1]  # type: ignore[func-returns-value, method-assign]
        engine.score_continuations = lambda *given: (calls.append("follow"), follow(*given))[1]  # type: ignore[func-returns-value, method-assign]
        pairs = asked[engine.data_rank]
        scorer = CausalScorer(engine, tokenizer, LENGTH, 40)  # type: ignore[arg-type]
        return calls, scorer.score(pairs, [0] * 2 if engine.data_rank == 0 else None).tolist()

    together = on_ranks(model, 2, call)
    assert together[0][0] == together[1][0]
    assert set(together[0][0]) == {"score", "follow"}
    for rank, (_, found) in enumerate(together):
        assert found == call(FakeEngine(model, rank), shares=False)[1]
