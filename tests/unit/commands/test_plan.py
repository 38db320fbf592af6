"""`pretrain plan`: what it prints, and sentences."""

import json
from pathlib import Path

import pytest

from pretrain.commands.plan import main
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.plan.estimate.builder import LayoutChoice
from pretrain.plan.plan_report import overrides
from pretrain.plan.search import Option
from tests.helpers import classics

SMALL = ("gpt3/125m", "model.vocabulary=50257")


def test_the_best_layout_comes_first_and_is_a_line_to_copy(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*SMALL, "--gpus", "8", "--hardware", "h100", "--top", "3"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(asked) == 0
    said = capsys.readouterr().out
    best = found["options"][0]
    assert best["layout"] in said
    assert said.splitlines()[-1] == best["overrides"]
    seconds = [one["step_s"] for one in found["options"]]
    assert seconds == sorted(seconds)
    assert len(seconds) == 3


EVERY_KEY = "parallel={tensor: 2, context: 2, sequence: true, pipeline: 2, virtual: 2}"


@pytest.mark.parametrize(
    ("own", "planned"),
    [
        (EVERY_KEY, "parallel={zero: 0}"),
        ("parallel={zero: 3, zero_engine: deepspeed}", EVERY_KEY),
        ("parallel={expert: 2}", "parallel={tensor: 2}"),
    ],
)
def test_the_overrides_replace_what_the_config_says(own: str, planned: str) -> None:
    config, target = (
        load(RunConfig, "debug/experts", ["model.vocabulary=300", "batch={sequences: 32, micro_sequences: 2}", one])
        for one in (own, planned)
    )
    choice = LayoutChoice(plan_layout(target, 8), 2, "full")
    option = Option(choice=choice, seconds=1.0, parts={}, held={}, bottleneck="compute")
    line = overrides(option, config)
    batch = "batch={sequences: 32, micro_sequences: 4}"
    changed = load(RunConfig, "debug/experts", ["model.vocabulary=300", batch, own, *line.split()])
    assert (plan_layout(changed, 8), changed.parallel.recompute) == (choice.layout, "full")
    assert changed.batch.micro_sequences == 2


@pytest.mark.parametrize("config", [*classics.names("NOT_PLANNED"), "rnn/luong", "transformer-xl/enwik8", "xlnet/base"])
def test_a_family_that_is_not_planned_is_named_with_what_counts_it(config: str) -> None:
    with pytest.raises(ConfigError, match=r"^model\.family=\w+ is not planned: .* pretrain rehearse CONFIG "):
        main([config, "model.vocabulary=30000", "--gpus", "8", "--hardware", "h100"])


ATTENTION = (("attention", *SMALL), (*SMALL, "--show-attention"))
"""the verb and the older option"""


def test_attention_is_printed_and_drawn_without_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for number, words in enumerate(ATTENTION):
        png = tmp_path / f"map-{number}.png"
        assert main([*words, "model.layers=2", "model.heads=2", "--png", str(png)]) == 0
        assert png.read_bytes().startswith(b"\x89PNG")
        said.append(capsys.readouterr().out.replace(str(png), "PNG"))
    assert "keys, 100.0% of dense" in said[0]
    assert said[0] == said[1]


@pytest.mark.parametrize("name", ["map.doc", "map", "none/map.png"])
@pytest.mark.parametrize(
    ("option", "words"),
    [*(("--png", words) for words in ATTENTION), ("--frontier", (*SMALL, "--gpus", "8", "--hardware", "h100"))],
)
def test_a_picture_that_cannot_be_written_is_refused_before_the_work(
    option: str, words: tuple[str, ...], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=f"^{option} .*{name}"):
        main([*words, option, str(tmp_path / name)])
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (["--failures-per-gpu-hour", "1e9"], "less than 0.1% of the time is spent on steps that count"),
        (["--save-seconds", "1e12"], "less than 0.1% of the time is spent on steps that count"),
        (["--restart-seconds", "1e12"], "less than 0.1% of the time is spent on steps that count"),
        (["--failures-per-gpu-hour", "1e300"], r"'1e300' is not a number from 0 to 1e\+12"),
        (["--price", "1e308"], r"'1e308' is not a number from 0 to 1e\+12"),
        (["--watts", "nan"], "'nan' is not a number from 0"),
        (["--gpus", "8000000"], "--gpus 8,000,000: plans are made for up to 1,000,000 GPUs"),
        (["model.layers=20000"], "a model of 20,000 layers: plans are made for up to 1,024"),
    ],
)
def test_what_no_cluster_and_no_model_has_is_a_sentence(told: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        main([*SMALL, "--gpus", "8", "--hardware", "h100", *told])


@pytest.mark.parametrize("words", ATTENTION)
def test_attention_of_more_layers_than_plans_are_made_for_is_not_drawn(words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a model of 1,000,000 layers"):
        main([*words, "model.layers=1000000", "--png", str(tmp_path / "map.png")])


@pytest.mark.parametrize("word", ["calibrate", "--calibrate"])
def test_a_machine_is_not_measured_with_more_threads_than_it_has_cores(word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--threads 100,000: this machine has"):
        main([word, "--threads", "100000", "--nproc", "1", "--out", str(tmp_path / "machine.yaml")])


@pytest.mark.parametrize("word", ["calibrate", "--calibrate"])
def test_ranks_of_the_same_command_measure_a_machine(
    word: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[tuple[int, list[str]]] = []

    def start(ranks: int, command: list[str], stop: None) -> int:
        started.append((ranks, command))
        return 0

    monkeypatch.setattr("pretrain.commands.local_ranks.start_local_ranks", start)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    out = ["--out", str(tmp_path / "machine.yaml")]
    assert main([word, *out]) == 0
    assert started == [(4, ["plan", word, *out, "--threads", "1"])]


@pytest.mark.parametrize("word", ["attention", "calibrate", "data"])
def test_a_file_with_the_name_of_a_verb_is_given_with_its_folder(
    word: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(word).write_text("extends: gpt3/125m\n")
    with pytest.raises(ConfigError, match=r"^plan: --gpus and --hardware are needed"):
        main([f"./{word}"])
    with pytest.raises(ConfigError, match=f"^plan {word}: "):
        main([word, "--nodes" if word == "data" else "--hardware"])


def test_a_cluster_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"--gpus and --hardware are needed \(or --show-attention, or --calibrate\)"):
        main([*SMALL, "--gpus", "8"])


@pytest.mark.parametrize("told", [["--nproc", "2"], ["--threads", "1"]])
def test_how_this_machine_is_measured_is_told_to_calibrate_alone(told: list[str]) -> None:
    with pytest.raises(ConfigError, match="are for --calibrate without a run"):
        main([*SMALL, "--gpus", "8", "--hardware", "h100", *told])


def test_a_measurement_of_this_machine_takes_no_gpus_per_node() -> None:
    with pytest.raises(ConfigError, match="leave CONFIG, --hardware and --gpus-per-node out"):
        main(["--calibrate", "--gpus-per-node", "4"])
