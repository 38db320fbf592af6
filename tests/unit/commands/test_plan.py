"""`pretrain plan`: what it prints, and sentences."""

import json
from pathlib import Path

import pytest

from pretrain.commands.plan import main
from pretrain.errors import ConfigError, RunError

SMALL = ("gpt3/125m", "model.vocabulary=50257")


def test_the_best_layout_comes_first_and_is_a_block_to_copy(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*SMALL, "--gpus", "8", "--hardware", "h100", "--top", "3"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(asked) == 0
    said = capsys.readouterr().out
    best = found["options"][0]
    assert best["layout"] in said
    assert all(line in said for line in best["parallel"].splitlines())
    seconds = [one["step_s"] for one in found["options"]]
    assert seconds == sorted(seconds)
    assert len(seconds) == 3


def test_attention_is_printed_and_drawn_without_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    png = tmp_path / "map.png"
    assert main([*SMALL, "model.layers=2", "model.heads=2", "--show-attention", "--png", str(png)]) == 0
    assert "keys, 100.0% of dense" in capsys.readouterr().out
    assert png.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(RunError, match=r"cannot be written .* name another file with --png"):
        main([*SMALL, "model.layers=2", "--show-attention", "--png", str(tmp_path / "none" / "map.png")])


def test_a_cluster_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"--gpus and --hardware are needed \(or --show-attention\)"):
        main([*SMALL, "--gpus", "8"])


@pytest.mark.parametrize("told", [["--nproc", "2"], ["--threads", "1"]])
def test_how_this_machine_is_measured_is_told_to_calibrate_alone(told: list[str]) -> None:
    with pytest.raises(ConfigError, match="are for --calibrate without a run"):
        main([*SMALL, "--gpus", "8", "--hardware", "h100", *told])
