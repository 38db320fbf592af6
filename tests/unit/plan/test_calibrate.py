"""`pretrain plan calibrate RUN`: the factor that a run's steps give, and what plan says with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretrain.commands.plan import main
from pretrain.config.load import dump, load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError

ASKED = ("gpt3/1.3b", "model.vocabulary=50304", "batch={sequences: 512, micro_sequences: 4}", "precision=bf16")


def _predicted(capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    assert main([*ASKED, "--gpus", "16", "--hardware", "a100-80", "--json", "--top", "5000", *more]) == 0
    options = json.loads(capsys.readouterr().out)["options"]
    (found,) = (option for option in options if option["layout"] == "tp2pp1dp8+zero1")
    return found


def _write(
    run: Path, seconds: list[float], begun: int = 0, micro: int = 4, recompute: str = "none", small: int = 0
) -> None:  # fmt: skip
    """A run on 16 ranks whose steps took so long: after a beginning on one, which counts for nothing. The last `small`
    have half a batch."""
    run.mkdir(exist_ok=True)
    chosen = (f"batch.micro_sequences={micro}", f"parallel={{tensor: 2, recompute: {recompute}}}", f"run.dir={run}")
    (run / "config.yaml").write_text(dump(load(RunConfig, "gpt3/1.3b", [*ASKED[1:], *chosen])))
    events = [{"event": "started", "ranks": 1}, {"event": "started", "ranks": 16}, {"event": "resumed", "step": begun}]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    lines, samples = [], 0
    for step, one in enumerate([0.0] * begun + seconds):
        samples += 256 if step >= begun + len(seconds) - small else 512
        lines.append({"step": step + 1, "samples": samples, "step_seconds": 1000.0 if step < begun else one})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _calibrate(run: Path, out: Path, word: str = "calibrate") -> int:
    return main([word, str(run), "--hardware", "a100-80", "--out", str(out)])


def test_a_plan_with_the_factor_says_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = _predicted(capsys)
    plain = alone["step_s"]
    seconds = [9.0, 9.0, 9.0, *[1.4 * plain] * 9, 2.0 * plain, 1.3 * plain, 1.5 * plain]
    _write(tmp_path / "run", seconds, 20, alone["micro_sequences"], alone["recompute"])
    assert _calibrate(tmp_path / "run", tmp_path / "ours.yaml") == 0
    said = capsys.readouterr().out
    assert said.startswith("12 steps: median ")
    found = _predicted(capsys, "--stack", str(tmp_path / "ours.yaml"))
    assert found["step_s"] == pytest.approx(1.4 * plain, rel=1e-3)
    assert found["micro_sequences"] == alone["micro_sequences"]
    assert "12 steps of " in (tmp_path / "ours.yaml").read_text()


def test_steps_with_less_than_a_whole_batch_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path / "run", [*[20.0] * 14, *[10.0] * 15], small=15)
    assert _calibrate(tmp_path / "run", tmp_path / "ours.yaml") == 0
    assert capsys.readouterr().out.startswith("11 steps: median 20 s")


def test_the_older_option_does_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, written = tmp_path / "ours.yaml", []
    _write(tmp_path / "run", [20.0] * 15)
    for word in ("calibrate", "--calibrate"):
        assert _calibrate(tmp_path / "run", out, word) == 0
        written.append((capsys.readouterr().out, out.read_text()))
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["RUN"], "RUN needs --hardware, the hardware that it ran on"),
        (
            ["RUN", "--hardware", "h100", "--threads", "1"],
            "--nproc and --threads are for a measurement of this machine",
        ),
        (["--hardware", "h100"], "--hardware and --gpus-per-node are of a RUN; without one"),
        (["--gpus-per-node", "8"], "--hardware and --gpus-per-node are of a RUN; without one"),
    ],
)
def test_options_of_a_run_and_of_this_machine_do_not_mix(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^plan calibrate: {said}"):
        main(["calibrate", *words])


def test_what_cannot_be_counted_is_said(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "ours.yaml"
    with pytest.raises(ConfigError, match="needs --hardware, and no CONFIG"):
        main(["--calibrate", str(run)])
    with pytest.raises(ConfigError, match="no such"):
        _calibrate(run, out)
    _write(run, [20.0] * 8)
    with pytest.raises(ConfigError, match="only 5 steps of the last start can be counted: 10 are needed"):
        _calibrate(run, out)
    _write(run, [1e-3] * 20)
    with pytest.raises(ConfigError, match=r"are shorter than what a100-80 is said to need .*: check its links"):
        _calibrate(run, out)
    (run / "events.jsonl").write_text("")
    with pytest.raises(ConfigError, match="is no run that has started"):
        _calibrate(run, out)
    assert not out.exists()
