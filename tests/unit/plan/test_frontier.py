"""What `pretrain plan --frontier` draws."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pretrain.commands.plan import main
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.plan.frontier import by_devices, picture, unbeaten
from pretrain.plan.goodput import Failures
from pretrain.plan.plan_report import Prices
from pretrain.plan.planner import make_plan
from tests.helpers.breadth import slow

SMALL = ["model.vocabulary=50257", "batch={sequences: 64, micro_sequences: 1}"]
FAILURES = Failures(10.0, 600.0, None)


def test_those_are_left_that_nothing_beats() -> None:
    draw = np.random.default_rng(0)
    seconds, memory = draw.random(300).round(2), draw.random(300).round(2)
    found = unbeaten(seconds, memory)
    assert 2 < len(found) < 30
    assert (np.diff(memory[found]) > 0).all()
    assert (np.diff(seconds[found]) < 0).all()
    for index in range(300):
        beaten = (seconds[found] <= seconds[index]) & (memory[found] <= memory[index])
        assert beaten.any(), "nothing that is better was left out"


def test_more_devices_take_fewer_days_and_more_gpu_hours() -> None:
    config = load(RunConfig, "gpt3/1.3b", SMALL)
    plan = make_plan(
        config,
        "h100",
        16,
        per_node=None,
        stack_name="unknown",
        target="throughput",
        top=1,
        prices=Prices(2.0, None),
        failures=FAILURES,
    )
    rows = by_devices(plan, FAILURES)
    assert [row["gpus"] for row in rows] == [1, 2, 4, 8, 16, 32, 64]
    days, hours = ([row[key] for row in rows] for key in ("days", "gpu_hours"))
    assert days == sorted(days, reverse=True)
    assert hours[-1] > hours[0]
    assert [row["cost"] for row in rows] == [2 * one for one in hours]


def test_it_is_drawn_beside_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["gpt3/1.3b", *SMALL, "--gpus", "16", "--hardware", "h100", "--top", "2", "--frontier"]
    assert main([*asked, str(tmp_path / "frontier.png")]) == 0
    assert "layouts judged" in capsys.readouterr().out
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"--frontier .* cannot be written: name a file in a directory that can"):
        main([*asked, str(tmp_path / "none" / "frontier.png")])


@pytest.mark.parametrize("gpus", [slow(16), 1024])
def test_no_two_labels_of_an_axis_are_written_over_each_other(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []

    def keep(figure: Figure, *arguments: object, **settings: object) -> None:
        FigureCanvasAgg(figure).draw()
        drawn.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    config = load(RunConfig, "gpt3/1.3b", ["model.vocabulary=50257", "batch={sequences: 1024, micro_sequences: 1}"])
    plan = make_plan(
        config,
        "h100",
        gpus,
        per_node=None,
        stack_name="unknown",
        target="throughput",
        top=1,
        prices=Prices(2.0, None),
        failures=FAILURES,
    )
    picture(plan, FAILURES, tmp_path / "frontier.png")
    for axes in drawn[0].axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() + axis.get_minor_ticks() if low <= tick.get_loc() <= high]
            boxes = [tick.label1.get_window_extent() for tick in ticks if tick.label1.get_text()]
            assert len(boxes) >= 3
            assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
