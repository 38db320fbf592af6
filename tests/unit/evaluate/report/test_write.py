"""report.json and report.html: complete, the same for the same scores, and of one piece."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import GPT2LMHeadModel

from data_pipeline.dataset.dataset import Dataset
from docs.make.browser import CHROMIUM, measured
from pretrain.evaluate.evaluator import Evaluation, evaluate
from pretrain.evaluate.report.combine import combine
from pretrain.evaluate.report.in_training import InTraining
from pretrain.evaluate.report.write import _curve, write
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.settings import EvalSettings
from pretrain.evaluate.tasks.jsonl import Problem
from tests.unit.evaluate.fakes import LENGTH, FakeEngine
from tests.unit.evaluate.report.pages import FACTS, Page, many


@pytest.fixture(scope="module")
def evaluation(model: GPT2LMHeadModel, dataset: Dataset, data_dir: Path) -> Evaluation:
    engine = FakeEngine(model)
    settings = EvalSettings(shots=(0, 1, 4), limit=5, data_dir=data_dir)
    tasks = ["heldout", "last_word", "lambada_openai", "reversed_words"]
    return evaluate(engine, CausalScorer(engine, dataset.tokenizer(), LENGTH), dataset, tasks, settings)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of 20 steps that crashed while it wrote step 11, and did 9 and 10 again."""
    steps = [*range(1, 11), *range(9, 21)]
    lines = [json.dumps({"step": n, "tokens": n * 2048, "loss": 9 - n / 5}) for n in steps]
    lines.insert(10, '{"step": 11, "tok')
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 21, "tokens": 9, "loss": NaN}\n')
    events = [{"event": "heldout", "step": n, "tokens": n * 2048, "loss": 9 - n / 6, "perplexity": 1} for n in (10, 20)]
    (tmp_path / "events.jsonl").write_text(
        "".join(json.dumps(e) + "\n" for e in [{"event": "saved", "step": 1}, *events])
    )
    return tmp_path


def test_equal_scores_give_equal_results(evaluation: Evaluation, run_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "a", evaluation, FACTS, run_dir=run_dir)
    write(tmp_path / "b", evaluation, replace(FACTS, name="other", layout="data 2", versions={}))
    one, other = (json.loads((tmp_path / name / "report.json").read_text()) for name in "ab")
    assert one["results"] == other["results"] == evaluation.results
    assert one["facts"]["name"] == "toy"
    assert one["facts"]["versions"] == {"torch": "2.13.0"}
    assert one["facts"]["date"].startswith("20")
    assert one["facts"]["documents"] == other["facts"]["documents"]
    assert one["samples"] == evaluation.samples
    assert one["problems"] == {}


def test_the_page_needs_nothing_from_outside(evaluation: Evaluation, run_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "out", evaluation, FACTS, run_dir=run_dir)
    html = (tmp_path / "out" / "report.html").read_text()
    page = Page(html)
    assert "http" not in html
    assert "//" not in re.sub(r"<pre>.*?</pre>", "", html, flags=re.DOTALL)
    assert "@import" not in html
    assert set(re.findall(r"url\((.)", html)) <= {"#"}
    assert all(address and address.startswith("#") for address in page.addresses)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert page.tags.count("svg") == 2 + 3  # the curve for two widths, and a panel for each task with shots


def test_the_page_shows_results_curve_and_published_numbers(
    evaluation: Evaluation, run_dir: Path, tmp_path: Path
) -> None:
    write(tmp_path / "out", evaluation, FACTS, run_dir=run_dir)
    text = Page((tmp_path / "out" / "report.html").read_text()).text
    accuracy = evaluation.results["lambada_openai"]["4"]
    assert f"{100 * accuracy['accuracy']:.1f} ± {100 * accuracy['accuracy_stderr']:.1f} %" in text
    assert f"{evaluation.results['heldout']['0']['loss']:.4f}" in text
    assert "GPT-3 125M" in text
    for few in ("42.7", "76.2", "22 (K=15)", "86.4 (K=15)"):
        assert few in text
    for label in ("training", "held-out text", "token frequencies alone", "tokens trained on", "shots", "last_word"):
        assert label in text
    for sample in evaluation.samples["reversed_words"]["4"]:
        assert sample["prompt"].removesuffix(sample["question"]).strip() in text
        assert sample["question"].strip() in text
    assert "{{" not in text


def test_the_page_has_each_source_of_the_held_out_text(tmp_path: Path) -> None:
    sources = {"en": {"loss_sum": 150.0, "token_count": 5000, "loss": 3.0, "bits_per_byte": 1.25}}
    evaluation = many(only=())
    evaluation.results["heldout"]["0"]["sources"] = sources
    write(tmp_path, evaluation, FACTS)
    assert json.loads((tmp_path / "report.json").read_text())["results"]["heldout"]["0"]["sources"] == sources
    row = re.search("<tr><th>en</th>.*", (tmp_path / "report.html").read_text())
    assert row is not None
    assert re.findall(r"<td.*?>(.*?)</td>", row[0]) == ["5,000", "3.0000", "1.2500"]


def test_page_and_record_say_what_training_found(evaluation: Evaluation, tmp_path: Path) -> None:
    write(tmp_path, evaluation, FACTS, in_training=InTraining(3.5, 64, 2))
    assert json.loads((tmp_path / "report.json").read_text())["in_training"] == {
        "loss": 3.5,
        "token_count": 64,
        "sequences": 2,
    }
    text = " ".join(Page((tmp_path / "report.html").read_text()).text.split())
    assert "During training the held-out loss of this model was 3.5000: the mean over the first 64 tokens" in text


def test_what_a_model_says_cannot_become_markup(evaluation: Evaluation, tmp_path: Path) -> None:
    sample = evaluation.samples["reversed_words"]["0"][0]
    said = sample["outcomes"] | {"text": {"answer": "<img src=x>", "tokens": [], "right": False, "f1": 0.0}}
    hostile = sample | {"prompt": "<script>", "question": "<script>", "target": "<b>", "outcomes": said}
    problems = {"reversed_words": [Problem("<b>.jsonl:1", "<script>")]}
    samples = {"reversed_words": {"0": [hostile]}}
    write(tmp_path, replace(evaluation, samples=samples, problems=problems), replace(FACTS, name="<script>"))
    page = Page((tmp_path / "report.html").read_text())
    assert not {"script", "img"} & set(page.tags)
    assert "<img src=x>" in page.text
    assert "<b>.jsonl:1" in page.text


def test_half_a_character_of_a_document_is_written(evaluation: Evaluation, tmp_path: Path) -> None:
    write(tmp_path, replace(evaluation, problems={"last_word": [Problem("a:1", "it has \ud800")]}), FACTS)
    record = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert record["problems"] == {"last_word": [{"where": "a:1", "what": "it has \ud800"}]}
    assert "it has" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_every_line_names_how_its_score_is_made_and_its_chance(tmp_path: Path) -> None:
    evaluation = many(draws=2)
    write(tmp_path, evaluation, replace(FACTS, draws=2))
    text = Page((tmp_path / "report.html").read_text()).words
    for line in (
        "hellaswag accuracy, choices compared per token 60 documents · chance 25.0 %",
        "arc_easy accuracy, choices compared by how much the question raises their probability 60 documents",
        "winograd accuracy, choices compared by log probability as it is 60 documents · chance 50.0 %",
        "cb F1, mean of the classes 60 documents",
        "coqa F1 of the words of the text made 20 documents",
        "wmt14_en_fr BLEU of the texts made 8 documents",
        "ptb perplexity per word 1 document",
    ):
        assert line in text
    few = evaluation.results["hellaswag"]["20"]
    score = f"{100 * few['accuracy_per_token']:.1f} ± {100 * few['accuracy_per_token_stderr']:.1f} %"
    assert f"20 {score} ± {100 * few['accuracy_per_token_spread']:.1f} %" in text
    assert "the standard deviation between 2 choices of the examples shown" in text


def test_the_page_shows_the_note_of_a_task_as_text(evaluation: Evaluation, tmp_path: Path) -> None:
    write(tmp_path, replace(evaluation, notes={"last_word": "synthetic, <b>chance</b> is 1/16"}), FACTS)
    page = (tmp_path / "report.html").read_text()
    assert "<b>Last word</b>: synthetic, &lt;b&gt;chance&lt;/b&gt; is 1/16" in page


def test_a_task_has_its_title_wherever_the_page_shows_its_scores(tmp_path: Path) -> None:
    evaluation = replace(many(only=["hellaswag", "coqa"]), titles={"hellaswag": "HellaSwag & co"})
    write(tmp_path, evaluation, FACTS)
    html = (tmp_path / "report.html").read_text()
    text = Page(html).words
    about = "hellaswag · 60 documents · chance 25.0 %"
    assert f"HellaSwag & co accuracy, choices compared per token {about}" in text
    assert html.count("HellaSwag &amp; co<") == 4, "the table for wide and for narrow pages, the chart and the fold"
    assert "coqa F1 of the words of the text made 20 documents" in text, "one without another title"
    assert json.loads((tmp_path / "report.json").read_text())["titles"] == {"hellaswag": "HellaSwag & co"}
    combined = Page(combine([tmp_path], tmp_path / "out").read_text()).words
    assert "HellaSwag & co accuracy, choices compared per token · chance 25.0 % 0-shot" in combined


def test_what_was_cut_or_not_scored_is_counted_and_located(tmp_path: Path) -> None:
    evaluation = many(only=["hellaswag", "arithmetic_2da"])
    bad = [Problem(f"hellaswag.jsonl:{line}", "it has no 'label'") for line in range(1, 9)]
    write(tmp_path, replace(evaluation, problems=evaluation.problems | {"hellaswag": bad}), FACTS)
    text = Page((tmp_path / "report.html").read_text()).words
    assert "arithmetic_2da 50-shot 12 of 80 (48.5 examples shown on average)" in text
    assert "Not scored: 8 of hellaswag" in text
    assert "hellaswag.jsonl:5 it has no 'label'" in text
    assert "hellaswag.jsonl:6" not in text
    assert "and 3 more, in report.json" in text
    assert len(json.loads((tmp_path / "report.json").read_text())["problems"]["hellaswag"]) == 8


def test_the_page_says_what_it_takes_to_do_it_again(tmp_path: Path) -> None:
    write(tmp_path, many(only=["cb", "coqa"]), FACTS)
    text = Page((tmp_path / "report.html").read_text()).words
    record = json.loads((tmp_path / "report.json").read_text())
    for said in (FACTS.command, FACTS.identity, FACTS.scorer, FACTS.decoding, FACTS.layout, "seed 0, 1 draw", "2.13.0"):
        assert said in text
    for task, digest in record["facts"]["documents"].items():
        assert f"{task} {digest}" in text


def test_the_curve_has_each_step_once_and_no_torn_or_bad_lines(run_dir: Path) -> None:
    train, heldout = _curve(run_dir)
    assert train == [(n * 2048, 9 - n / 5) for n in range(1, 21)]
    assert heldout == [(n * 2048, 9 - n / 6) for n in (10, 20)]


def test_a_checkpoint_without_a_run_has_no_curve(evaluation: Evaluation, tmp_path: Path) -> None:
    write(tmp_path / "out", evaluation, FACTS, run_dir=tmp_path)
    assert "Learning curve" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("task", ["heldout", "arithmetic_2da", "last_word"])
def test_one_task_alone_makes_a_report(engine: FakeEngine, dataset: Dataset, tmp_path: Path, task: str) -> None:
    settings = EvalSettings(shots=(0,), limit=1)
    scorer = CausalScorer(engine, dataset.tokenizer(), LENGTH)
    write(tmp_path, evaluate(engine, scorer, dataset, [task], settings), FACTS)
    assert Page((tmp_path / "report.html").read_text()).text.count("toy") >= 1


LAYOUT = """JSON.stringify({
    hidden: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    charts: [...page.querySelectorAll("svg")]
        .map(chart => chart.getBoundingClientRect().width / chart.viewBox.baseVal.width).filter(scale => scale > 0),
    scrolling: [...page.querySelectorAll(".wide:not(details *)")].filter(box => box.scrollWidth > box.clientWidth)
        .map(box => box.offsetHeight - box.clientHeight),
})"""
A_POINT = 96 / 72  # pixels


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize(("width", "scrolling"), [(390, 1), (1280, 0)])
def test_in_a_browser_only_tables_are_wider_than_the_screen_and_charts_are_not_shrunk(
    run_dir: Path, tmp_path: Path, width: int, scrolling: int
) -> None:
    evaluation = many(draws=2)
    sums = evaluation.results["arithmetic_2da"]
    sums["12"] = sums["50"]  # the paper shows another number
    write(tmp_path / "out", evaluation, FACTS, run_dir=run_dir)
    layout = json.loads(measured((tmp_path / "out" / "report.html").read_text(), width, LAYOUT))
    assert layout["hidden"] == 0
    assert len(layout["charts"]) == 1 + 7, "one of the two curves, and every panel"
    assert layout["charts"] == pytest.approx([A_POINT] * 8, rel=0.02)
    assert len(layout["scrolling"]) == scrolling, "held-out text, where the screen is a phone's"
    assert all(bar >= 8 for bar in layout["scrolling"]), "a bar shows that a table scrolls"
