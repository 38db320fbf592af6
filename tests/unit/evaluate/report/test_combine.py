"""Several reports as one: in order, side by side, with curves where there is something to draw them over."""

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from docs.make.browser import CHROMIUM, measured
from pretrain.commands.eval import main
from pretrain.errors import ConfigError
from pretrain.evaluate.report.combine import combine
from pretrain.evaluate.report.write import write
from tests.unit.evaluate.report.pages import FACTS, Page, many

TASKS = ("hellaswag", "cb", "coqa", "arithmetic_2da")
SMALL, LARGE = 125_000_000, 1_300_000_000


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints of a small run, and one of a large one, which saw fewer documents."""
    folder = tmp_path_factory.mktemp("reports")
    for step in (300, 100, 200):
        facts = replace(FACTS, name="small", parameters=SMALL, step=step, tokens=step * 1000)
        write(folder / f"small-{step}", many(step / 400, only=TASKS), facts)
    facts = replace(FACTS, name="large", parameters=LARGE, step=50, tokens=50_000, limit=7)
    write(folder / "large", many(0.9, only=TASKS), facts)
    return folder


@pytest.fixture(scope="module")
def combined(reports: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of all of them."""
    names = ("large", "small-300", "small-100", "small-200")
    out = tmp_path_factory.mktemp("combined") / "out"
    page = combine([reports / name for name in names], out)
    assert page == out / "report.html"
    return page


def test_reports_are_in_order_of_size_and_tokens_and_keep_their_results(reports: Path, combined: Path) -> None:
    found = json.loads(combined.with_name("report.json").read_text())
    assert [(one["facts"]["name"], one["facts"]["step"]) for one in found["reports"]] == [
        ("small", 100), ("small", 200), ("small", 300), ("large", 50)
    ]  # fmt: skip
    large = json.loads((reports / "large" / "report.json").read_text())
    assert found["reports"][-1]["results"] == large["results"]
    assert found["reports"][-1]["facts"] == large["facts"]
    assert found["differences"] == {"limit": [5, 5, 5, 7]}


def test_the_page_has_every_score_side_by_side_and_says_what_differs(reports: Path, combined: Path) -> None:
    text = Page(combined.read_text()).words
    rows = [json.loads((reports / name / "report.json").read_text()) for name in ("small-100", "large")]
    for found in rows:
        result = found["results"]["hellaswag"]["20"]
        assert f"{100 * result['accuracy_per_token']:.1f} ± " in text
    assert "hellaswag accuracy, choices compared per token · chance 25.0 % 0-shot" in text
    assert "held-out text loss, nats per token 3.5741 3.5741 3.5741 3.5741" in text
    assert "Not all were asked alike: they differ in limit." in text
    assert "GPT-3 1.3B GPT-3 175B" in text
    assert "50-shot" in text


def test_curves_are_over_tokens_within_a_run_and_over_parameters_between_runs(
    reports: Path, combined: Path, tmp_path: Path
) -> None:
    tasks = 5  # the held-out text among them
    assert Page(combined.read_text()).tags.count("svg") == 2 * tasks

    def charts(names: list[str]) -> tuple[bool, bool, int]:
        page = Page((combine([reports / name for name in names], tmp_path)).read_text())
        return "By tokens trained on" in page.text, "By model size" in page.text, page.tags.count("svg")

    assert charts(["small-100"]) == (False, False, 0)
    assert charts(["small-100", "small-300"]) == (True, False, tasks)
    assert charts(["small-100", "large"]) == (False, True, tasks)


def test_pages_below_the_common_one_are_linked_and_no_others(reports: Path, tmp_path: Path) -> None:
    below = tmp_path / "100%25 done?#7:a"
    write(below, many(only=TASKS), FACTS)
    page = Page(combine([below, reports / "large"], tmp_path).read_text())
    (address,) = (address for address in page.addresses if address and not address.startswith("#"))
    assert url2pathname(urlsplit(address).path) == "100%25 done?#7:a/report.html"
    assert not urlsplit(address).scheme
    assert not {"script", "link", "img", "iframe"} & set(page.tags)


def test_a_task_that_one_report_lacks_or_asked_of_other_documents_is_told(reports: Path, tmp_path: Path) -> None:
    evaluation = many(only=TASKS)
    del evaluation.results["coqa"]
    fewer = replace(evaluation, documents=evaluation.documents | {"cb": list(evaluation.documents["cb"])[1:]})
    write(tmp_path / "one", fewer, FACTS)
    text = Page(combine([reports / "large", tmp_path / "one"], tmp_path / "out").read_text()).words
    coqa = json.loads((reports / "large" / "report.json").read_text())["results"]["coqa"]["5"]
    assert f"5-shot \N{EN DASH} {100 * coqa['f1']:.1f} ± " in text
    assert "The documents are not the same in all for cb." in text


def test_the_verb_makes_the_page_and_says_where_it_is(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "both"
    assert main(["report", str(reports / "small-100"), str(reports / "large"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"report: {out / 'report.html'}\n"
    assert (out / "report.html").exists()


def test_the_verb_does_not_write_over_a_report(reports: Path) -> None:
    with pytest.raises(ConfigError, match="is one of the reports and would be overwritten"):
        main(["report", str(reports / "large"), "--out", str(reports / "small-100" / ".." / "large")])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "has no report.json: name directories that `pretrain eval --out` wrote"),
        ("{", "cannot be read"),
        ("[1]", "is not a report of `pretrain eval`"),
        ('{"facts": {"name": "a", "step": 1}, "results": {}}', "its facts have no checkpoint, parameters, tokens"),
        ('{"reports": []}', "is of several reports: name the directories of the single ones"),
    ],
)
def test_what_is_no_report_of_one_checkpoint_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(ConfigError, match=said):
        combine([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser_only_the_table_is_wider_than_the_screen(combined: Path, width: int) -> None:
    hidden = measured(
        combined.read_text(), width, "page.documentElement.scrollWidth - page.documentElement.clientWidth"
    )
    assert int(hidden) == 0
