"""`pretrain runs` and `pretrain plot`, of recorded runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.image import imread

from pretrain.__main__ import main
from pretrain.config.load import dump, load
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.parameters import num_parameters
from pretrain.pages.run_curves import ExpertCounts, heldout_events, labels, loads, read_curves
from tests.helpers.tiny import tiny_config


def record(run: Path, losses: list[float | None], *events: dict[str, Any], speed: float = 10.0) -> Path:
    """A run of 100 steps that has made some, of 256 tokens each."""
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text(dump(tiny_config()))
    lines = [
        {
            "step": n,
            "loss": loss,
            "grad_norm": 1.0 / n,
            "learning_rate": n * 1e-5,
            "tokens": n * 256,
            "tokens_per_second": speed,
        }
        for n, loss in enumerate(losses, 1)
    ]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    timed = [{"time": "2026-01-01T00:00:00.000+00:00", **event} for event in events]
    (run / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in timed))
    return run


def heldout(step: int, loss: float) -> dict[str, Any]:
    return {"event": "heldout", "step": step, "tokens": step * 256, "loss": loss}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    record(tmp_path / "sweep" / "a", [5.0, 4.0, 3.0, 2.0], heldout(2, 4.5), heldout(4, 2.5), {"event": "finished"})
    record(tmp_path / "sweep" / "b", [5.0, None, 3.5], heldout(2, 4.25), {"event": "failed"}, speed=20.0)
    artifacts = tmp_path / "sweep" / "mlflow-artifacts" / "x"
    artifacts.mkdir(parents=True)
    (artifacts / "config.yaml").write_text(dump(tiny_config()))  # a config alone is no run
    return tmp_path / "sweep"


def test_a_table_of_runs(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(two), "--json", "--sort", "heldout"]) == 0
    a, b = json.loads(capsys.readouterr().out)
    expected = {
        "run": "a", "path": str(two / "a"), "model": "gpt 4x64", "parameters": num_parameters(tiny_config().model),
        "step": 4, "steps": 100, "tokens": 1024, "loss": 2.0, "heldout": 2.5, "tokens_per_second": 10.0,
        "status": "finished", "when": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    assert a == expected
    assert (b["run"], b["step"], b["loss"], b["heldout"], b["status"]) == ("b", 3, 3.5, 4.25, "failed")
    assert main(["runs", str(two)]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["run", "model", "parameters", "step"]
    assert re.search(r"^a +gpt 4x64 .* 4/100 +1\.02k +2\.0000 +2\.5000 +10 +finished +\d{4}-", first)
    assert second.startswith("b ")


def test_a_run_whose_config_cannot_be_read_is_in_the_table(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (two / "b" / "config.yaml").write_text("nonsense: 1\n")
    assert main(["runs", str(two)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^b +- +- +3 +768 ", out, re.MULTILINE)
    assert re.search(r"^note: .*b/config.yaml: ", out, re.MULTILINE)


@pytest.mark.parametrize("name", ["debug/gpt", "debug/t5", "debug/electra"])
def test_a_launched_run_that_has_not_started_is_in_the_table(
    two: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    config = load(RunConfig, name, ["data.path=/data/x", f"run.dir={two / 'c'}"])
    assert config.model.vocabulary is None, "the data decides it"
    (two / "c" / "launch").mkdir(parents=True)
    (two / "c" / "launch" / "config.yaml").write_text(dump(config))
    assert main(["runs", str(two), "--json"]) == 0
    printed = capsys.readouterr()
    assert not printed.err
    a, b, c = json.loads(printed.out)
    assert (a["status"], b["status"], c["status"]) == ("finished", "failed", "unknown")
    assert (c["model"], c["parameters"], c["step"], c["tokens"]) == (
        f"{config.model.family} {config.model.layers}x{config.model.hidden}", None, 0, None,
    )  # fmt: skip
    assert main(["plot", str(two)]) == 0
    assert "note: c: no step yet" in capsys.readouterr().out


def test_vocabularies_and_a_teacher_are_known_before_parameters_are_counted() -> None:
    assert tiny_config().is_resolved
    assert not tiny_config(model={"vocabulary": None}).is_resolved
    assert not tiny_config(distillation={"teacher": "runs/teacher"}).is_resolved


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(
    two: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record(two / "c", [4.0], {"event": "heldout"})  # as no run writes it: without its step
    record(two / "closed" / "d", [3.0])
    (two / "e" / "checkpoints").mkdir(parents=True)
    (two / "f" / "checkpoints").mkdir(parents=True)
    # Folders stand for files that this user may not read.
    for run, closed, other in (("e", "events.jsonl", "metrics.jsonl"), ("f", "metrics.jsonl", "events.jsonl")):
        (two / run / closed).mkdir()
        for readable in ("config.yaml", other):
            (two / run / readable).write_bytes((two / "a" / readable).read_bytes())
    listed = os.scandir

    def scandir(folder: str) -> Any:
        if Path(folder) == two / "closed":
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr("os.scandir", scandir)
    assert main(["runs", str(two), str(two / "closed"), "--json"]) == 0
    printed = capsys.readouterr()
    rows = {row["run"]: row for row in json.loads(printed.out)}
    assert {run: row["status"] for run, row in rows.items()} == {
        "a": "finished", "b": "failed", "c": "unreadable", "e": "unreadable",
        "f": "unreadable",
    }  # fmt: skip
    assert (rows["e"]["model"], rows["e"]["step"], rows["e"]["loss"]) == ("gpt 4x64", None, None)
    missing, again, *others = printed.err.splitlines()
    assert missing == again == f"note: {two}/closed cannot be read (Permission denied): runs there are left out"
    assert others == [
        "note: c: its records are not those that a run writes (KeyError: 'loss')",
        f"note: e: {two}/e/events.jsonl cannot be read (Is a directory)",
        f"note: f: {two}/f/metrics.jsonl cannot be read (Is a directory)",
    ]
    page = tmp_path / "plot.html"
    assert main(["plot", str(two), "--out", str(page)]) == 0
    for said in (capsys.readouterr().out, page.read_text()):
        assert f"{two}/closed cannot be read (Permission denied): runs there are left out" in said
        assert "c is left out: its records are not those that a run writes" in said
        assert f"e is left out: {two}/e/events.jsonl cannot be read (Is a directory)" in said
        assert f"f is left out: {two}/f/metrics.jsonl cannot be read (Is a directory)" in said
    for verb in ("runs", "plot"):
        assert main([verb, str(two / "closed")]) == 2
        assert "closed cannot be read (Permission denied)" in capsys.readouterr().err


def test_a_directory_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("runs", "plot"):
        assert main([verb, str(tmp_path)]) == 2
        assert "nothing in it has a config.yaml" in capsys.readouterr().err
    assert main(["plot", str(tmp_path), "--out", "x.gif"]) == 2
    assert "ends with .png or .html" in capsys.readouterr().err


def test_curves_are_what_was_recorded(two: Path) -> None:
    (a, b), notes = read_curves([two], "tokens")
    assert notes == ["b: 1 of 3 steps have no finite loss"]
    assert (a.label, b.label) == ("a", "b")
    np.testing.assert_array_equal(a.points["loss"], [[256, 512, 768, 1024], [5, 4, 3, 2]])
    np.testing.assert_array_equal(a.points["heldout"], [[512, 1024], [4.5, 2.5]])
    np.testing.assert_array_equal(b.points["loss"], [[256, 512, 768], [5, np.nan, 3.5]])
    np.testing.assert_array_equal(read_curves([two / "a"], "steps")[0][0].points["grad_norm"][0], [1, 2, 3, 4])
    np.testing.assert_array_equal(b.averaged("loss", 2), [[384, 768], [5, 3.5]])  # the mean of those that are finite


def test_heldout_losses_of_steps_made_again_are_dropped(tmp_path: Path) -> None:
    steps = (
        *(heldout(2, 4.0), heldout(4, 9.0), {"event": "resumed", "step": 3}),
        *(heldout(4, 3.0), heldout(6, 8.0), {"event": "rolled_back", "step": 6, "to_step": 5}),
    )
    run = record(tmp_path / "run", [5.0], *steps)
    assert [(event["step"], event["loss"]) for event in heldout_events(run)] == [(2, 4.0), (4, 3.0)]


def test_labels_leave_out_what_all_have(tmp_path: Path) -> None:
    assert labels([tmp_path / "x" / "run", tmp_path / "y" / "run"]) == ["x/run", "y/run"]
    assert labels([tmp_path / "x" / "run"]) == ["run"]


def test_a_terminal_has_every_quantity_in_plain_characters(
    two: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["plot", str(two), "--over", "steps"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 60
    charts = out.split("\n\n")
    assert [chart.splitlines()[0].split(",")[0] for chart in charts[:-1]] == [
        "loss", "held-out loss", "learning rate", "gradient norm before clipping (logarithmic)", "tokens per second",
    ]  # fmt: skip
    rows = charts[0].splitlines()
    assert rows[1].startswith("        5 |o")  # the highest, at the first step; the second run lies over the first
    assert rows[10].endswith("|" + 48 * " " + "*")  # the lowest, at the last step
    assert rows[11].split() == ["1", "steps", "4"]
    assert charts[-1].splitlines() == ["* a", "o b", "note: b: 1 of 3 steps have no finite loss"]


def test_a_picture_and_a_page(two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    png, page = tmp_path / "plot.png", tmp_path / "plot.html"
    assert main(["plot", str(two), "--out", str(png)]) == 0
    pixels = imread(png)[..., :3]
    for colour in ("2563eb", "ea580c"):  # both runs are drawn
        wanted = np.array([int(colour[i : i + 2], 16) for i in (0, 2, 4)]) / 255
        assert (np.abs(pixels - wanted).max(axis=-1) < 0.01).sum() > 500
    assert main(["plot", str(two), "--out", str(page), "--terminal"]) == 0
    assert "held-out loss\n" in capsys.readouterr().out
    text = page.read_text()
    assert text.count("<svg") == 5
    assert not re.search(r"https?://|<script|<link", text)
    assert "b: 1 of 3 steps have no finite loss" in text


def test_figures_of_layers_have_panels_of_their_own(two: Path, tmp_path: Path) -> None:
    metrics = two / "a" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines[1::2]:
        for layer in ("decoder.layers.0", "decoder.layers.1", "embedding.word_embeddings"):
            line |= {f"layer_grad_norm/{layer}": 0.5, f"layer_output_max/{layer}": 3.0 * line["step"]}
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (a, b), _ = read_curves([two], "steps")
    assert a.points["layer_output_max/decoder.layers.1"].tolist() == [[2, 4], [6, 12]]
    assert [name for name in b.points if name.startswith("layer_")] == []
    page, png = tmp_path / "plot.html", tmp_path / "plot.png"
    for out in (page, png):
        assert main(["plot", str(two), "--out", str(out)]) == 0
    text = page.read_text()
    assert text.count("<svg") == 5 + 2
    assert "gradient norm by layer, a" in text
    assert imread(png).shape[0] == 4 * 3.0 * 150, "seven panels, two in a row"


def test_experts_have_a_heat_map_of_the_newest_counts(
    two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = two / "a" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    layers = {"decoder.layers.1": [100, 80, 120, 100], "mtp.layers.0.transformer_layer": [0, 399, 1, 0]}
    for line in lines[:3]:
        line |= {f"tokens_per_expert/{name}": counts for name, counts in layers.items()}
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = [{"event": "idle_experts", "step": step, "text": f"step {step}: idle"} for step in (1, 3, 4)]
    with (two / "a" / "events.jsonl").open("a") as events:
        for event in (*said, {"event": "rolled_back", "step": 4, "to_step": 3}):
            events.write(json.dumps(event) + "\n")
    (a, b), notes = read_curves([two], "steps")
    assert a.experts == ExpertCounts(3, layers)
    assert b.experts is None
    assert loads(a.experts).tolist() == [[1, 0.8, 1.2, 1], [0, 3.99, 0.01, 0]]
    assert a.points["idle_experts/mtp.layers.0.transformer_layer"].tolist() == [[1, 2, 3], [0.75] * 3]
    assert "a: step 3: idle" in notes
    assert "a: step 4: idle" not in notes, "which is made again"

    monkeypatch.setenv("COLUMNS", "60")
    page, png = tmp_path / "plot.html", tmp_path / "plot.png"
    assert main(["plot", str(two), "--terminal", "--out", str(png)]) == 0
    out = capsys.readouterr().out
    assert out.split("load of experts at step 3, a\n")[1].splitlines()[1:3] == ["    1 |====|", "mtp 0 |_#__|"]
    assert max(len(line) for line in out.splitlines() if "wrote" not in line) <= 60
    pixels = imread(png)[..., :3]
    colours = colormaps["RdBu_r"]([0.0, (1 + np.log10(3.99)) / 2])[:, :3]
    idle, used = ((np.abs(pixels - colour).max(axis=-1) < 0.01).sum() for colour in colours)
    assert idle / used == pytest.approx(3, rel=0.1), "three experts are idle, and one has four times the mean"
    assert main(["plot", str(two), "--out", str(page)]) == 0
    text = page.read_text()
    assert text.count("<svg") == 5 + 2
    assert "load of experts at step 3, a" in text
    assert "a: step 3: idle" in text


def test_a_table_and_a_plot_load_no_torch(two: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pretrain.__main__ as m; "
        f"done = [m.main(['runs', {str(two)!r}]), "
        f"m.main(['plot', {str(two)!r}, '--out', {str(tmp_path / 'p.png')!r}])]; "
        "sys.exit(any(done) or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
