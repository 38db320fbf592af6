"""report.json and report.html: complete, the same for the same scores, and of one piece."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from data_pipeline.dataset.dataset import Dataset
from docs.make.browser import CHROMIUM, measured
from pretrain.evaluate.in_training import InTraining
from pretrain.evaluate.report import Facts, _curve, write
from pretrain.evaluate.run import Evaluation, Settings, evaluate
from tests.unit.evaluate.fakes import LENGTH, FakeEngine

FACTS = Facts("toy", "checkpoints/step-00000020", 20, 40960, 130_000, "tensor 2", 0, 5, {"torch": "2.13.0"}, 7.0)


@pytest.fixture
def evaluation(engine: FakeEngine, dataset: Dataset, data_dir: Path) -> Evaluation:
    settings = Settings(shots=(0, 1, 4), sequence_length=LENGTH, limit=5, data_dir=data_dir)
    tasks = ["heldout", "last_word", "lambada_openai", "reversed_words"]
    return evaluate(engine, dataset.tokenizer(), dataset, tasks, settings)


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


class Page(HTMLParser):
    """Collects text, tags and addresses."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags, self.addresses = "", [], []
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]


def test_equal_scores_give_equal_results(evaluation: Evaluation, run_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "a", evaluation, FACTS, run_dir)
    write(tmp_path / "b", evaluation, replace(FACTS, name="other", layout="data 2", versions={}))
    one, other = (json.loads((tmp_path / name / "report.json").read_text()) for name in "ab")
    assert one["results"] == other["results"] == evaluation.results
    assert one["facts"]["name"] == "toy"
    assert one["facts"]["versions"] == {"torch": "2.13.0"}
    assert one["facts"]["date"].startswith("20")


def test_the_page_needs_nothing_from_outside(evaluation: Evaluation, run_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "out", evaluation, FACTS, run_dir)
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
    write(tmp_path / "out", evaluation, FACTS, run_dir)
    text = Page((tmp_path / "out" / "report.html").read_text()).text
    accuracy = evaluation.results["lambada_openai"]["4"]
    assert f"{100 * accuracy['accuracy']:.1f} ± {100 * accuracy['accuracy_stderr']:.1f} %" in text
    assert f"{evaluation.results['heldout']['0']['loss']:.4f}" in text
    assert "GPT-3 as published" in text
    assert "Small (125M)" in text
    assert "76.2 · 72.5 · 86.4 %" in text
    for label in ("training", "held-out text", "token frequencies alone", "tokens trained on", "shots", "last_word"):
        assert label in text
    for sample in evaluation.samples["reversed_words"]["4"]:
        assert sample["prompt"].strip() in text
    assert "{{" not in text


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
    sample = {"prompt": "<script>", "target": "<b>", "probability": 0.5, "greedy": False, "answer": "<img src=x>"}
    write(tmp_path, replace(evaluation, samples={"reversed_words": {"0": [sample]}}), FACTS)
    page = Page((tmp_path / "report.html").read_text())
    assert not {"script", "img"} & set(page.tags)
    assert "<img src=x>" in page.text


def test_the_curve_has_each_step_once_and_no_torn_or_bad_lines(run_dir: Path) -> None:
    train, heldout = _curve(run_dir)
    assert train == [(n * 2048, 9 - n / 5) for n in range(1, 21)]
    assert heldout == [(n * 2048, 9 - n / 6) for n in (10, 20)]


def test_a_checkpoint_without_a_run_has_no_curve(evaluation: Evaluation, tmp_path: Path) -> None:
    write(tmp_path / "out", evaluation, FACTS, run_dir=tmp_path)
    assert "Learning curve" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("task", ["heldout", "arithmetic_2da", "last_word"])
def test_one_task_alone_makes_a_report(engine: FakeEngine, dataset: Dataset, tmp_path: Path, task: str) -> None:
    settings = Settings(shots=(0,), sequence_length=LENGTH, limit=1)
    write(tmp_path, evaluate(engine, dataset.tokenizer(), dataset, [task], settings), FACTS)
    assert Page((tmp_path / "report.html").read_text()).text.count("toy") >= 1


LAYOUT = """JSON.stringify({
    hidden: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    charts: [...page.querySelectorAll("svg")]
        .map(chart => chart.getBoundingClientRect().width / chart.viewBox.baseVal.width).filter(scale => scale > 0),
    scrolling: [...page.querySelectorAll(".wide")].filter(box => box.scrollWidth > box.clientWidth)
        .map(box => box.offsetHeight - box.clientHeight),
    tables: page.querySelectorAll("table").length,
})"""
A_POINT = 96 / 72  # pixels


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize(("width", "scrolling"), [(390, 2), (1280, 0)])
def test_in_a_browser_only_tables_are_wider_than_the_screen_and_charts_are_not_shrunk(
    evaluation: Evaluation, run_dir: Path, tmp_path: Path, width: int, scrolling: int
) -> None:
    write(tmp_path / "out", evaluation, FACTS, run_dir)
    layout = json.loads(measured((tmp_path / "out" / "report.html").read_text(), width, LAYOUT))
    assert layout["hidden"] == 0
    assert len(layout["charts"]) == 1 + 3, "one of the two curves, and every panel"
    assert layout["charts"] == pytest.approx([A_POINT] * 4, rel=0.02)
    assert layout["tables"] == 2
    assert len(layout["scrolling"]) == scrolling
    assert all(bar >= 8 for bar in layout["scrolling"]), "a bar shows that a table scrolls"
