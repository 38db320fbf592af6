"""The museum of silent faults: each planted fault is found where it is, and without one the tools are silent."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pretrain.layout.names import parse_layout
from pretrain.verify.jobs import Job, fits, plan
from tests.helpers.breadth import only, slow
from tests.museum import page, results
from tests.museum.comparing import Compare
from tests.museum.exhibit import Exhibit, as_config
from tests.museum.exhibits import EXHIBITS, WAITING
from tests.museum.verifying import Verify

QUICK = (
    "norms_not_summed",
    "master_weights_in_bf16",
    "position_lost_after_resuming",
)
BY_NAME = {exhibit.name: exhibit for exhibit in EXHIBITS}
CLEAN_LAYOUTS = sorted({e.finder.layout for e in EXHIBITS if isinstance(e.finder, Verify)})
CLEAN_QUICK_LAYOUTS = ["dp2+zero2", "tp2"]
CLEAN_SEEDS = (7, 11)
_LINES = 10
_THREAD = re.compile(r"[\w.-]+/[\w.-]+#\d+")


@pytest.mark.parametrize("name", only(QUICK, BY_NAME))
@pytest.mark.timeout(600)
def test_a_fault_is_found_where_it_is(name: str, tmp_path: Path) -> None:
    recorded = results.read()[name]
    found = results.measure(BY_NAME[name], tmp_path)
    if recorded is None:
        assert found is None, "it is found after all: measure it again"
        return
    assert found is not None
    assert (found.quantity, found.step, found.stages) == (recorded.quantity, recorded.step, recorded.stages)


def _clean_configs() -> dict[str, Verify]:
    """A finder of each config that `verify` looks at, by its description."""
    finders = [exhibit.finder for exhibit in EXHIBITS if isinstance(exhibit.finder, Verify)]
    return {f"{one.family} {as_config(one.sections)}".strip(): one for one in finders}


def _clean_jobs(finder: Verify, seed: int, layouts: Iterable[str] = CLEAN_LAYOUTS) -> list[Job]:
    config = finder.run_config(seed)
    chosen = [
        layout for layout in (parse_layout(text, zero=1) for text in layouts) if fits(config, layout, finder.full)
    ]
    return plan(config, chosen, finder.full)


@pytest.mark.parametrize(
    ("config", "seed", "layouts"),
    [
        (next(iter(_clean_configs())), CLEAN_SEEDS[0], CLEAN_QUICK_LAYOUTS),
        *(slow((config, seed, CLEAN_LAYOUTS)) for config in _clean_configs() for seed in CLEAN_SEEDS),
    ],
    ids=lambda value: value if isinstance(value, str | int) else f"{len(value)} layouts",
)
@pytest.mark.timeout(600)
def test_without_a_fault_verify_is_silent(config: str, seed: int, layouts: list[str], tmp_path: Path) -> None:
    finder = _clean_configs()[config]
    jobs = _clean_jobs(finder, seed, layouts)
    rows = finder.rows_of(jobs, None, tmp_path)[0]
    assert len(rows) == len(jobs) >= len(layouts)
    assert [row for row in rows if not row.same] == []


@pytest.mark.slow
def test_the_clean_runs_are_many() -> None:
    runs = sum(len(_clean_jobs(finder, seed)) for finder in _clean_configs().values() for seed in CLEAN_SEEDS)
    assert runs >= page.CLEAN_RUNS


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(4,), (8,), (4, 8)])
def test_without_a_fault_compare_is_silent(stops: tuple[int, ...], tmp_path: Path) -> None:
    assert Compare(quantity="samples", step=0, stops=stops).examine(None, tmp_path) == []


def test_the_page_is_made_from_what_was_measured() -> None:
    """If this fails: python -m tests.museum --page."""
    assert page.PATH.read_text(encoding="utf-8") == page.page(results.read())


def test_nine_in_ten_are_found_and_each_miss_has_its_reason() -> None:
    recorded = results.read()
    assert recorded.keys() == BY_NAME.keys()
    missed = {name for name, found in recorded.items() if found is None}
    assert all(BY_NAME[name].unseen is not None for name in missed)
    assert len(missed) <= 0.1 * len(EXHIBITS)


def test_what_was_measured_is_what_each_exhibit_expects() -> None:
    for name, found in results.read().items():
        if found is not None:
            assert BY_NAME[name].finder.expected([found]) == found, name


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)
def test_an_exhibit_is_a_patch_of_few_lines(exhibit: Exhibit) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(exhibit.plant))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    lines = ast.unparse(ast.Module(body, [])).splitlines()
    assert len([line for line in lines if line.strip()]) <= _LINES


def test_what_each_fault_patches_is_there() -> None:
    """The slow tests show what comes of it."""
    for exhibit in EXHIBITS:
        with pytest.MonkeyPatch.context() as patch:
            exhibit.plant(patch)


def test_threads_are_of_github_and_have_an_effect() -> None:
    assert len(BY_NAME) == len(EXHIBITS), "each fault has one exhibit"
    assert {exhibit.group for exhibit in EXHIBITS} == set(page.GROUPS)
    both: list[Any] = [*EXHIBITS, *WAITING]
    for one in both:
        assert one.threads, one.title
        assert one.effect, one.title
        assert all(_THREAD.fullmatch(thread) for thread in one.threads), one.title
