"""Tasks on the benchmarks themselves, as far as a package has them: all lines are read, and lm-eval chooses alike."""

from pathlib import Path

import pytest

from pretrain.evaluate.evaluator import evaluate
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.settings import EvalSettings
from pretrain.evaluate.tasks.base import Sources
from pretrain.evaluate.tasks.registry import task_named
from tests.helpers.benchmarks import benchmarks
from tests.unit.evaluate.fakes import LENGTH, FakeEngine, ToyTokenizer, random_model
from tests.unit.evaluate.lm_eval_choices import PARTIAL, THEIRS, check_agreement

pytestmark = pytest.mark.slow

SIZES = {
    "hellaswag": (10_042, 39_905), "piqa": (1_838, 16_113), "winogrande": (1_267, 40_398), "arc_easy": (2_376, 2_251),
    "arc_challenge": (1_172, 1_119), "openbookqa": (500, 4_957), "boolq": (3_270, 9_427), "cb": (56, 0),
    "copa": (100, 0), "rte": (277, 0), "nq_open": (3_610, 0), "triviaqa": (7_993, 0),
}  # fmt: skip
"""task -> questions and examples, as the benchmarks' papers count them; 0: the package has no examples"""
LIMIT = 20


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.timeout(600)
def test_every_line_of_a_benchmark_is_a_document(name: str) -> None:
    task, (questions, examples) = task_named(name), SIZES[name]
    sources = Sources(benchmarks(), None, ToyTokenizer(), seed=0)  # type: ignore[arg-type]
    loaded = task.load(sources)
    assert (len(loaded.documents), list(loaded.problems)) == (questions, [])
    if examples:
        assert task.load_shots is not None
        pool = task.load_shots(sources)
        assert all(pool.example(place) is not None for place in range(len(pool)))
        assert (len(pool), list(pool.problems)) == (examples, [])


@pytest.mark.timeout(600)
def test_every_choice_is_lm_evals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    choices = [name for name in SIZES if task_named(name).output_types == ("multiple_choice",)]
    shots = {name: (0, 2) if SIZES[name][1] else (0,) for name in choices}
    shots["hellaswag"] = (0,)  # its examples are many, and read above
    compared = check_agreement(FakeEngine(random_model()), benchmarks(), shots, tmp_path, LIMIT)
    most = LIMIT * sum(len(ks) * (1 if name in PARTIAL else len(THEIRS)) for name, ks in shots.items())
    assert most * 0.9 < compared <= most, "a few have choices that are longer than this small model"


@pytest.mark.parametrize("name", ["nq_open", "triviaqa"])
def test_questions_are_answered_in_text(name: str) -> None:
    settings = EvalSettings(shots=(0,), limit=4, data_dir=benchmarks())
    scorer = CausalScorer(FakeEngine(random_model()), ToyTokenizer(), LENGTH)  # type: ignore[arg-type]
    evaluation = evaluate(FakeEngine(random_model()), scorer, None, [name], settings)  # type: ignore[arg-type]
    assert evaluation.results[name]["0"]["documents"] == 4
    assert evaluation.results[name]["0"]["exact_match"] == 0, "by a random model"
    assert evaluation.problems[name] == []
