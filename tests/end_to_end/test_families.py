"""Encoders and encoder-decoders, by the commands: trained, moved to another layout, exported, imported, asked."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu

from tests.helpers import command
from tests.helpers.breadth import slow

SMALL = (
    *("batch={sequences: 8, micro_sequences: 2}", "schedule={name: constant}", "track.mlflow=false"),
    *("evaluate={every_steps: 0, sequences: 16}", "checkpoint.every_steps=3", "model.hidden=32", "model.heads=2"),
    *("optimizer.learning_rate=1e-3", "parallel={}"),
)
FOUR = ("parallel={tensor: 2, pipeline: 2}", "--nproc", "4")
LENGTHS = {"bert": ("model.sequence_length=32",), "t5": ("model.sequence_length=32", "model.target_length=10")}


def _run(*arguments: object) -> str:
    done = command.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _train(family: str, dataset: Path, run: Path, steps: int, *more: str) -> list[dict[str, Any]]:
    places = (f"data.path={dataset}", f"run.dir={run}", f"train.steps={steps}")
    _run("train", f"configs/debug/{family}.yaml", *places, *SMALL, *LENGTHS[family], *more)
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _heldout(run: Path) -> dict[int, float]:
    """The held-out loss by step."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return {event["step"]: event["loss"] for event in events if event["event"] == "heldout"}


@pytest.fixture(scope="module")
def alone(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of six steps on one rank."""
    runs = {family: tmp_path_factory.mktemp(family) / "run" for family in ("bert", "t5")}
    for family, run in runs.items():
        _train(family, dataset, run, 6)
    return runs


@pytest.mark.parametrize("family", [slow("bert"), "t5"])
def test_it_goes_on_on_another_layout_and_is_the_same_run(
    family: str, dataset: Path, alone: dict[str, Path], tmp_path: Path
) -> None:
    expected = [json.loads(line) for line in (alone[family] / "metrics.jsonl").read_text().splitlines()]
    _train(family, dataset, tmp_path / "run", 3, *FOUR)
    found = _train(family, dataset, tmp_path / "run", 6)
    assert [line["step"] for line in found] == list(range(1, 7))
    for key in ("data_hash", "tokens", "samples", "learning_rate"):
        assert [line[key] for line in found] == [line[key] for line in expected], key
    losses = np.array([[line["loss"] for line in lines] for lines in (found, expected)])
    assert np.abs(losses[0] - losses[1]).max() <= 1e-5


@pytest.mark.slow
def test_short_sequences_come_first_and_a_stop_between_changes_nothing(dataset: Path, tmp_path: Path) -> None:
    short = "batch={sequences: 8, micro_sequences: 2, short: {sequence_length: 16, steps: 3}}"
    whole = _train("bert", dataset, tmp_path / "whole", 6, short)
    assert [line["tokens"] for line in whole] == [128, 256, 384, 640, 896, 1152]
    _train("bert", dataset, tmp_path / "run", 4, short)
    parts = _train("bert", dataset, tmp_path / "run", 6, short, "parallel.tensor=2", "--nproc", "2")
    assert [line["data_hash"] for line in parts] == [line["data_hash"] for line in whole]
    losses = np.array([[line["loss"] for line in lines] for lines in (parts, whole)])
    assert np.abs(losses[0] - losses[1]).max() <= 1e-5


@pytest.mark.slow
def test_an_exported_and_imported_model_has_the_same_held_out_loss(alone: dict[str, Path], tmp_path: Path) -> None:
    hf, back = tmp_path / "hf", tmp_path / "back"
    assert "largest logit difference" in _run("export", alone["bert"], "--to", "hf", hf)
    assert "trained | 6 steps" in (hf / "README.md").read_text()
    assert "largest logit difference" in _run("import", "hf", hf, "--out", back)
    without = command.run("eval", back, "--tasks", "heldout", "--out", tmp_path / "none")
    assert without.returncode == 2
    assert "give a run whose data can be read" in without.stderr
    config = json.loads((alone["bert"] / "checkpoints" / "step-00000006" / "record.json").read_text())["config"]
    segments = ("objective.next_sentence=true", "objective.boundaries=unicode")
    more = (f"data.path={config['data']['path']}", *segments)
    losses = []
    for run, overrides in ((alone["bert"], ()), (back, more)):
        out = tmp_path / f"report-{len(losses)}"
        _run("eval", run, "--tasks", "heldout", "--limit", "16", "--out", out, *overrides)
        losses.append(json.loads((out / "report.json").read_text())["results"]["heldout"]["0"]["loss"])
    assert losses[0] == pytest.approx(_heldout(alone["bert"])[6], abs=1e-6)
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_a_run_starts_from_anothers_weights(dataset: Path, alone: dict[str, Path], tmp_path: Path) -> None:
    source, run = tmp_path / "source", tmp_path / "run"
    shutil.copytree(alone["bert"], source)
    more = _train("bert", dataset, run, 3, f"run.start_from={source}", "parallel.pipeline=2", "--nproc", "2")
    first = json.loads((alone["bert"] / "metrics.jsonl").read_text().splitlines()[0])
    assert more[0]["data_hash"] == first["data_hash"], "a run of its own, from the first sample"
    assert more[0]["loss"] < first["loss"] - 0.01, "that has learnt already"
    before = _heldout(run)[0]  # the first step
    assert before == pytest.approx(_heldout(source)[6], abs=1e-5), "that of the weights where the other run ended"
    shutil.rmtree(source)
    assert len(_train("bert", dataset, run, 4, f"run.start_from={source}")) == 4, "which are not asked for again"


def test_held_out_text_that_makes_no_sample_is_said_before_the_first_step(text: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Too short.\n")
    files = (f"input={text}", f"validation_input={tmp_path / 'short.txt'}", f"output={tmp_path / 'dataset'}")
    _run("data", "build", "configs/data/text.yaml", *files, "tokenizer.vocabulary=500")
    places = (f"data.path={tmp_path / 'dataset'}", f"run.dir={tmp_path / 'run'}", "train.steps=2")
    done = command.run("train", "configs/debug/t5.yaml", *places, *SMALL, *LENGTHS["t5"])
    assert done.returncode == 2
    assert "The validation split" in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_an_encoder_is_asked_for_choices_and_not_for_text(alone: dict[str, Path], tmp_path: Path) -> None:
    done = command.run("eval", alone["bert"], "--tasks", "arithmetic_2da", "--out", tmp_path / "report")
    assert done.returncode == 2
    assert "task arithmetic_2da asks for text, which a model of this kind does not make" in done.stderr
    lines = ({"goal": f"To {n}", "sol1": "do it", "sol2": "leave it", "label": n % 2} for n in range(6))
    (tmp_path / "piqa_validation.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    asked = ("--tasks", "piqa,last_word", "--limit", "6", "--data", tmp_path)
    for family in ("bert", "t5"):
        done = command.run("eval", alone[family], *asked, "--out", tmp_path / family)
        assert done.returncode == 0, done.stderr
        report = json.loads((tmp_path / family / "report.json").read_text())
        assert report["results"]["piqa"]["0"]["documents"] == report["results"]["last_word"]["0"]["documents"] == 6
        assert ("pseudo" in report["facts"]["scorer"]) == (family == "bert")


def test_an_encoder_fills_masks_alike_on_any_ranks_and_has_no_text_to_draw(alone: dict[str, Path]) -> None:
    prompts = ("--prompt", "The [MASK] statement is", "--prompt", "A [MASK] of [MASK]")
    filled = _run("generate", alone["bert"], *prompts)
    assert filled.startswith("[prompt] The [MASK] statement is\n[text] The")
    assert filled.count("[text] ") == 2
    assert "[MASK]" not in "".join(filled.split("[prompt] A [MASK] of [MASK]")[1:])
    assert _run("generate", alone["bert"], *prompts, "parallel.pipeline=2", "--nproc", "2") == filled
    refused = command.run("generate", alone["bert"], *prompts, "--temperature", "1")
    assert refused.returncode == 2
    assert "fills each [MASK] of a prompt with the most probable piece; leave --temperature out" in refused.stderr


def test_an_encoder_decoder_fills_sentinels_alike_on_any_ranks(alone: dict[str, Path], tmp_path: Path) -> None:
    found = []
    for number, layout in enumerate(((), ("parallel.pipeline=2", "--nproc", "2"))):
        out = tmp_path / f"{number}.jsonl"
        _run("generate", alone["t5"], "--prompt", "The <extra_id_0> statement", "--out", out, *layout, "--beam", "3")
        found.append(json.loads(out.read_text()))
    for line in found:
        assert line["filled"].startswith("The")
        assert line["filled"].endswith(" statement")
    texts = [{name: value for name, value in line.items() if name != "log_probability"} for line in found]
    assert texts[0] == texts[1]


PAIRS = [(f"{a} {b}", f"{b} and {a}") for a in ("eins", "zwei", "drei") for b in ("rot", "gelb", "grün")]


@pytest.mark.slow
def test_a_transformer_learns_pairs_and_translates_them(tmp_path: Path) -> None:
    lines = [json.dumps({"source": source, "target": target}) for source, target in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines * 4) + "\n")
    settings = ("tokenizer={type: bpe, vocabulary: 300}", f"output={tmp_path / 'dataset'}", "validation_fraction=0.2")
    files = (f"input={tmp_path / 'pairs.jsonl'}", f"validation_input={tmp_path / 'held.jsonl'}")
    (tmp_path / "held.jsonl").write_text("\n".join(lines) + "\n")
    _run("data", "build", "configs/data/pairs.yaml", *settings, *files)
    sizes = ("model.sequence_length=16", "model.target_length=16", "model.layers=1", "model.encoder_layers=1")
    places = (f"data.path={tmp_path / 'dataset'}", f"run.dir={tmp_path / 'run'}", "train.steps=150")
    learning = ("optimizer.learning_rate=5e-3", "model.dropout=0", "batch={sequences: 9, micro_sequences: 9}")
    _run("train", "configs/debug/transformer.yaml", *places, *SMALL, *sizes, *learning)
    test = tmp_path / "test.jsonl"
    test.write_text("\n".join(lines) + "\n")
    printed = _run("translate", tmp_path / "run", test, "--out", tmp_path / "said.txt")
    said = (tmp_path / "said.txt").read_text().splitlines()
    targets = [target for _, target in PAIRS]
    assert said == targets
    assert float(re.findall(r"BLEU ([\d.]+)", printed)[0]) == pytest.approx(
        sacrebleu.corpus_bleu(said, [targets]).score, abs=0.01
    )
    shared = ("parallel.tensor=2", "parallel.sequence=true", "--nproc", "2")
    on_two = _run("translate", tmp_path / "run", test, "--out", tmp_path / "two.txt", *shared, "--beam", "1")
    assert (tmp_path / "two.txt").read_text().splitlines() == targets
    assert "BLEU" in on_two
