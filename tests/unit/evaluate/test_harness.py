"""lm-eval, driving the same model through the adapter, gets our scores."""

import json
import math
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager
from transformers import GPT2LMHeadModel

from pretrain.errors import ConfigError
from pretrain.evaluate.evaluator import evaluate
from pretrain.evaluate.harness import HarnessModel
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.settings import EvalSettings
from pretrain.evaluate.tasks.arithmetic import document
from tests.unit.evaluate.fakes import LENGTH, VOCABULARY, FakeEngine, ToyTokenizer, on_ranks

LIMIT = 24
LAMBADA = """
task: lambada_openai
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: loglikelihood
test_split: test
doc_to_text: "{{{{text.split(' ')[:-1]|join(' ')}}}}"
doc_to_target: "{{{{' '+text.split(' ')[-1]}}}}"
metric_list: [{{metric: perplexity, aggregation: perplexity}}, {{metric: acc, aggregation: mean}}]
"""
ARITHMETIC = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: {kind}
test_split: test
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{completion}}}}"
target_delimiter: ""
{rest}
"""
EXACT = """metric_list: [{metric: exact_match, aggregation: mean}]
filter_list: [{name: strip, filter: [{function: regex, regex_pattern: "^ *(.*?) *$"}, {function: take_first}]}]
generation_kwargs: {until: ["\\n"], max_gen_toks: 9}"""


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def lm_eval_results(model: HarnessModel, folder: Path, **tasks: str) -> dict[str, dict[str, Any]]:
    for name, yaml in tasks.items():
        (folder / f"{name}.yaml").write_text(yaml)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    scored = lm_eval.simple_evaluate(
        model=model, tasks=list(tasks), task_manager=manager, limit=LIMIT, bootstrap_iters=0, log_samples=False
    )
    return scored["results"]


def test_lambada_agrees_with_lm_eval(
    engine: FakeEngine, tokenizer: ToyTokenizer, benchmarks: Path, tmp_path: Path
) -> None:
    file = benchmarks / "lambada_test.jsonl"
    theirs = lm_eval_results(
        HarnessModel(engine, tokenizer, LENGTH, 3), tmp_path, lambada_openai=LAMBADA.format(file=file)
    )["lambada_openai"]
    settings = EvalSettings(shots=(0,), limit=LIMIT, data_dir=benchmarks)
    ours = evaluate(engine, CausalScorer(engine, tokenizer, LENGTH), None, ["lambada_openai"], settings).results[
        "lambada_openai"
    ]["0"]  # type: ignore[arg-type]
    assert ours["perplexity"] == pytest.approx(theirs["perplexity,none"], rel=1e-4)
    assert ours["accuracy"] == pytest.approx(theirs["acc,none"], abs=1e-4)


def test_arithmetic_agrees_with_lm_eval(learned: GPT2LMHeadModel, tokenizer: ToyTokenizer, tmp_path: Path) -> None:
    file = tmp_path / "single_digit_three_ops.jsonl"
    documents = [document("arithmetic_1dc", index, 0) for index in range(40)]
    file.write_text("".join(json.dumps({"context": d.context, "completion": d.target}) + "\n" for d in documents))
    engine = FakeEngine(learned)
    likelihood = ARITHMETIC.format(
        name="likelihood", file=file, kind="loglikelihood", rest="metric_list: [{metric: acc, aggregation: mean}]"
    )
    generated = ARITHMETIC.format(name="generated", file=file, kind="generate_until", rest=EXACT)
    generated = generated.replace('"{{completion}}"', '"{{completion.strip()}}"')
    model = HarnessModel(engine, tokenizer, LENGTH, 5)
    theirs = lm_eval_results(model, tmp_path, likelihood=likelihood, generated=generated)
    settings = EvalSettings(shots=(0,), limit=LIMIT, data_dir=tmp_path)
    ours = evaluate(engine, CausalScorer(engine, tokenizer, LENGTH), None, ["arithmetic_1dc"], settings).results[
        "arithmetic_1dc"
    ]["0"]  # type: ignore[arg-type]
    assert 0 < ours["exact_match"] < 1
    assert ours["accuracy"] == pytest.approx(theirs["likelihood"]["acc,none"], abs=1e-4)
    assert ours["exact_match"] == pytest.approx(theirs["generated"]["exact_match,strip"], abs=1e-4)


_THOUGHTS = {
    "6 + 8": " Six and eight are fourteen. The answer is 14",
    "5 - 2": " Two from five is three. The answer is 3",
    "7 + 7": " Seven and seven are thirteen. The answer is 13",
    "9 * 9": " Nine times nine is" + " what?" * 40,
}
_REASONED = """
task: reasoned
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: generate_until
test_split: test
doc_to_text: "Q: {{{{q}}}}\\nA:"
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{until: ["\\n"]}}
{rest}
"""


class _Reciter(FakeEngine):
    """A model that says its thoughts on the last question that it reads."""

    def next_tokens(self, held: list[list[int]], parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        held[:] = [[*held[parent], int(token)] for parent, token in zip(parents, tokens, strict=True)]
        says = np.full((len(held), VOCABULARY), -1e9, np.float32)
        for row, ids in enumerate(held):
            question, _, said = ToyTokenizer().decode(ids).rpartition("Q: ")[2].partition("\nA:")
            answer = ToyTokenizer().encode(f"{_THOUGHTS[question]}\n")
            says[row, answer[len(ToyTokenizer().encode(said))]] = 0
        return says


@pytest.mark.parametrize(
    ("rest", "name", "right"),
    [
        (
            r"filter_list: [{name: last, filter: [{function: regex, regex_pattern: 'answer is (\-?[0-9.,]+)'}, "
            "{function: take_first}]}]",
            "exact_match,last",
            2,
        ),
        (
            'metric_list: [{metric: exact_match, regexes_to_ignore: [".*answer is "]}]',
            "exact_match,none",
            2,
        ),
        ("", "exact_match,none", 0),
    ],
)
def test_a_chain_of_thought_is_as_long_as_lm_eval_s(
    model: GPT2LMHeadModel, tokenizer: ToyTokenizer, tmp_path: Path, rest: str, name: str, right: int
) -> None:
    """Half of the model's positions, as both allow it 256 tokens by default. Where nothing stands between an answer and
    a reference, an answer that is longer than any reference is wrong, and is not counted as cut."""
    lines = zip(_THOUGHTS, ("14", "3", "14", "81"), strict=True)
    (tmp_path / "test.jsonl").write_text("".join(json.dumps({"q": q, "a": a}) + "\n" for q, a in lines))
    yaml = _REASONED.format(file=tmp_path / "test.jsonl", rest=rest)
    engine = _Reciter(model)
    theirs = lm_eval_results(HarnessModel(engine, tokenizer, LENGTH), tmp_path, reasoned=yaml)["reasoned"]
    scored = evaluate(
        engine,
        CausalScorer(engine, tokenizer, LENGTH),
        None,
        [str(tmp_path / "reasoned.yaml")],
        EvalSettings(shots=(0,)),
    )  # type: ignore[arg-type]
    ours = scored.results["reasoned"]["0"]
    assert ours["exact_match_count"] == right
    assert ours["exact_match"] == pytest.approx(theirs[name])
    assert (ours["answer_tokens"], ours["answers_cut"]) == ((LENGTH // 2, 1) if rest else (len(" 14") + 1, 0))


def test_rolling_likelihood_predicts_every_token_once(engine: FakeEngine, tokenizer: ToyTokenizer) -> None:
    text = "the cat is singing. " * 30
    ids = [tokenizer.end_of_text, *tokenizer.encode(text)]
    length, expected, predicted = 64, 0.0, 1
    while predicted < len(ids):  # windows that end where the next begins to predict, each as full as can be
        end = min(predicted + length, len(ids))
        window = torch.tensor([ids[max(0, end - length - 1) : end]])
        with torch.no_grad():
            scores = engine.model(window[:, :-1]).logits[0].log_softmax(-1).gather(1, window[0, 1:, None])
        expected += scores[-(end - predicted) :].sum().item()
        predicted = end
    model = HarnessModel(engine, tokenizer, length)
    requests = [Instance("loglikelihood_rolling", {}, (t,), 0) for t in (text, "", "a")]
    whole, nothing, _ = model.loglikelihood_rolling(requests)
    assert whole == pytest.approx(expected, rel=1e-5)
    assert nothing == 0


def test_answers_reach_every_data_rank_in_the_order_of_requests(
    model: GPT2LMHeadModel, tokenizer: ToyTokenizer
) -> None:
    texts = [f"{'long ' * n}the cat {n} is sing" for n in (3, 0, 7, 1, 5)]

    def call(engine: FakeEngine) -> list[Any]:
        lm = HarnessModel(engine, tokenizer, LENGTH, 1)
        settings = {"until": ["the"], "max_gen_toks": 6}
        return [
            lm.loglikelihood([Instance("loglikelihood", {}, (t, "ing"), 0) for t in texts]),
            lm.generate_until(
                [Instance("generate_until", {}, (t, {**settings, "max_gen_toks": len(t) % 3 + 4}), 0) for t in texts]
            ),
        ]

    alone = call(FakeEngine(model))
    assert len(set(alone[0])) == 5
    assert all(math.isfinite(log_probability) for log_probability, _ in alone[0])
    assert on_ranks(model, 2, call) == [alone, alone]


def test_it_decodes_as_a_task_asks(engine: FakeEngine, tokenizer: ToyTokenizer) -> None:
    lm = HarnessModel(engine, tokenizer, LENGTH)

    def say(**settings: Any) -> str:
        return lm.generate_until([Instance("generate_until", {}, ("abc", {"max_gen_toks": 8, **settings}), 0)])[0]

    greedy, drawn, beam = say(), say(do_sample=True, temperature=5.0), say(num_beams=4, length_penalty=0.6)
    assert len({greedy, drawn, beam}) == 3
    assert say(do_sample=True, temperature=5.0) == drawn
    assert say(do_sample=True, top_k=1) == say(num_beams=1) == greedy


def test_settings_are_read_as_lm_eval_reads_them(engine: FakeEngine, tokenizer: ToyTokenizer) -> None:
    lm = HarnessModel(engine, tokenizer, LENGTH)

    def say(times: int = 1, **settings: Any) -> list[str]:
        return lm.generate_until([Instance("generate_until", {}, ("abc", settings), 0) for _ in range(times)])

    assert say(max_new_tokens=5) == say(max_tokens=5) == say(max_gen_toks=5, max_tokens=9, until="never")
    assert say(temperature=5.0, max_gen_toks=8) == say(do_sample=True, temperature=5.0, max_gen_toks=8)
    assert say(do_sample=False, temperature=5.0, max_gen_toks=8) == say(max_gen_toks=8)
    with pytest.raises(ConfigError, match="generation_kwargs: repetition_penalty changes nothing here: leave it out"):
        say(repetition_penalty=2.0)


def test_a_prompt_that_is_asked_several_times_is_drawn_anew_each_time(
    engine: FakeEngine, tokenizer: ToyTokenizer
) -> None:
    lm = HarnessModel(engine, tokenizer, LENGTH)
    drawn = {"do_sample": True, "temperature": 5.0, "max_gen_toks": 8}
    requests = [Instance("generate_until", {}, (prompt, drawn), 0) for prompt in ("abc", "x", "abc", "abc")]
    first, _, *others = lm.generate_until(requests)
    assert len({first, *others}) == 3
    assert lm.generate_until(requests[:1]) == [first]


def test_answers_longer_than_the_model_have_half_of_it(engine: FakeEngine, tokenizer: ToyTokenizer) -> None:
    lm = HarnessModel(engine, tokenizer, 16)
    (answer,) = lm.generate_until([Instance("generate_until", {}, ("a" * 40, {}), 0)])
    expected = HarnessModel(engine, tokenizer, LENGTH).generate_until(
        [Instance("generate_until", {}, ("a" * 8, {"max_gen_toks": 8}), 0)]
    )
    assert [answer] == expected
