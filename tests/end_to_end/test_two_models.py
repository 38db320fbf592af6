"""Runs of two models by the commands: ELECTRA's discriminator and generator, and a student of a teacher."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from pretrain.checkpoint import store
from pretrain.checkpoint.files import Manifest
from tests.helpers import command
from tests.helpers.breadth import slow

SMALL = (
    *("batch={sequences: 8, micro_sequences: 2}", "schedule={name: constant}", "track.mlflow=false", "parallel={}"),
    *("evaluate={every_steps: 3, sequences: 16}", "checkpoint.every_steps=3", "model.hidden=32", "model.heads=2"),
    *("model.layers=2", "model.sequence_length=32", "optimizer.learning_rate=1e-3"),
)


def _run(*arguments: object) -> str:
    done = command.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _refused(*arguments: object) -> str:
    done = command.run(*arguments)
    assert done.returncode == 2
    return done.stderr


def _train(config: str, dataset: Path, run: Path, *more: object) -> None:
    _run("train", f"configs/debug/{config}.yaml", f"data.path={dataset}", f"run.dir={run}", *SMALL, *more)


def _electra(dataset: Path, run: Path, steps: int, *more: object) -> None:
    _train("electra", dataset, run, f"train.steps={steps}", "generator={hidden: 16, heads: 2}", *more)


def _last_heldout(run: Path) -> dict[str, Any]:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line for line in events if line["event"] == "heldout"][-1]


@pytest.fixture(scope="module")
def electra(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps on one rank."""
    run = tmp_path_factory.mktemp("electra") / "run"
    _electra(dataset, run, 6)
    return run


@pytest.mark.parametrize("layout", [(), slow("tensor=2"), slow("pipeline=2")])
def test_held_out_text_is_scored_by_both_models_as_in_training(electra: Path, tmp_path: Path, layout: Any) -> None:
    more = (f"parallel.{layout}", "--nproc", "2") if layout else ()
    text = _run("eval", electra, "--tasks", "heldout", "--limit", "16", "--out", tmp_path / "report", *more)
    result = json.loads((tmp_path / "report" / "report.json").read_text())["results"]["heldout"]["0"]
    trained = _last_heldout(electra)
    assert result["loss"] == pytest.approx(trained["loss"], abs=1e-5)
    assert result["loss_replaced"] == pytest.approx(trained["loss_replaced"], abs=1e-5)
    assert f"loss_replaced {trained['loss_replaced']:.4f}" in text
    assert "loss_replaced" in (tmp_path / "report" / "report.html").read_text()


def test_commands_read_the_model_that_is_meant(electra: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("The statement is an expression.\n")
    assert "has two models" in _refused("features", electra, tmp_path / "lines.txt")
    assert "has two models" in _refused("eval", electra, "--tasks", "last_word", "--out", tmp_path / "none")
    widths = {}
    for model in ("discriminator", "generator"):
        out = tmp_path / f"{model}.safetensors"
        _run("features", electra, tmp_path / "lines.txt", "--model", model, "--out", out)
        (vectors,) = (value for value in load_file(out).values() if value.dtype == np.float32)
        widths[model] = vectors.shape[-1]
        assert np.isfinite(vectors).all()
    assert widths == {"discriminator": 32, "generator": 16}
    prompt = ("--prompt", "The [MASK] statement")
    assert _run("generate", electra, "--model", "generator", *prompt).startswith("[prompt] The [MASK] statement\n")
    for refused in (("generate", electra, *prompt), ("eval", electra, "--tasks", "last_word", "--out", tmp_path)):
        assert "predicts none: choose the generator" in _refused(*refused, "--model", "discriminator")
    held_out = ("--tasks", "heldout", "--model", "generator", "--out", tmp_path / "none")
    assert "scores both models" in _refused("eval", electra, *held_out)


def _weights(run: Path, step: int) -> dict[str, np.ndarray]:
    checkpoint = run / "checkpoints" / f"step-{step:08}"
    manifest = Manifest.read(checkpoint)
    names = [name for name in manifest.tensors if name.startswith("model/")]
    return {name: store.read_full_tensor(checkpoint, manifest, name) for name in names}


def test_a_student_begins_with_layers_of_its_teacher_on_any_layout(dataset: Path, tmp_path: Path) -> None:
    plain = ("model.binary_head=false", "objective={name: masked, next_sentence: false}", "model.segments=2")
    _train("bert", dataset, tmp_path / "teacher", *plain, "model.layers=4", "train.steps=1")
    of_teacher = (f"distillation.teacher={tmp_path / 'teacher'}", "distillation.start_layers=[1, 3]", "train.steps=1")
    still = ("optimizer.learning_rate=1e-12", "parallel.pipeline=2", "--nproc", "2")
    _train("bert", dataset, tmp_path / "student", *plain, *of_teacher, *still)
    teacher, student = _weights(tmp_path / "teacher", 1), _weights(tmp_path / "student", 1)
    assert len(student) < len(teacher)
    for name, value in student.items():
        there = name.replace(".layers.1.", ".layers.3.").replace(".layers.0.", ".layers.1.")
        assert np.abs(value - teacher[there]).max() < 1e-9, name


@pytest.fixture(scope="module")
def layerwise(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of TinyBERT's general stage, with a wider teacher, on two tensor ranks."""
    place = tmp_path_factory.mktemp("tinybert")
    plain = ("model.binary_head=false", "objective={name: masked, next_sentence: false}", "train.steps=20")
    _train("bert", dataset, place / "teacher", *plain, "model.layers=4", "model.hidden=48")
    student = (f"distillation.teacher={place / 'teacher'}", "train.steps=24", "checkpoint.every_steps=12")
    _train("tinybert", dataset, place / "run", *student, "parallel.tensor=2", "--nproc", "2")
    return place / "run"


@pytest.mark.slow
def test_a_student_that_learns_from_layers_is_exported_as_a_bert(layerwise: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (layerwise / "metrics.jsonl").read_text().splitlines()]
    first, last = lines[0], lines[-1]
    assert last["loss"] == pytest.approx(last["loss_hidden"] + last["loss_attention"], rel=1e-5)
    assert last["loss_hidden"] < 0.8 * first["loss_hidden"]
    weights = _weights(layerwise, 24)
    assert weights["model/teacher_projection.weight"].shape == (48, 32)
    _run("export", layerwise, "--to", "hf", tmp_path / "exported")
    described = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert (described["architectures"], described["hidden_size"]) == (["BertForMaskedLM"], 32)
    names = load_file(tmp_path / "exported" / "model.safetensors").keys()
    assert not any("projection" in name for name in names)


@pytest.mark.slow
def test_a_student_that_learned_from_layers_resumes_and_is_tuned(
    layerwise: Path, dataset: Path, tmp_path: Path
) -> None:
    """Resumed on other ranks; fine-tuning and a further masked run do not read the projection."""
    teacher = layerwise.parent / "teacher"
    student = (f"distillation.teacher={teacher}", "train.steps=24", "checkpoint.every_steps=12")
    again = tmp_path / "again"
    shutil.copytree(layerwise, again)
    shutil.rmtree(again / "checkpoints" / "step-00000024")
    _train("tinybert", dataset, again, *student, "parallel.zero=2", "parallel.zero_engine=deepspeed", "--nproc", "2")
    left, right = ([json.loads(x) for x in (run / "metrics.jsonl").open()] for run in (layerwise, again))
    assert [line["data_hash"] for line in left] == [line["data_hash"] for line in right]
    assert [line["loss"] for line in right] == pytest.approx([line["loss"] for line in left], abs=1e-5)
    rows = [json.dumps({"text": f"a text {number}", "label": "01"[number % 2]}) for number in range(16)]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    tuned = (f"data.path={tmp_path}", f"run.dir={tmp_path / 'tuned'}", "train.epochs=1", "track.mlflow=false")
    _run("finetune", layerwise, "finetune/classification", *tuned)
    plain = ("model.binary_head=false", "objective={name: masked, next_sentence: false}", "train.steps=1")
    _train("bert", dataset, tmp_path / "further", *plain, f"run.start_from={layerwise}")
    assert not any("projection" in name for name in _weights(tmp_path / "further", 1))


@pytest.mark.slow
def test_a_task_is_learned_from_a_fine_tuned_teacher_in_two_steps(layerwise: Path, tmp_path: Path) -> None:
    """TinyBERT's second stage: first the layers, then soft labels. Another order of labels is refused."""
    rows = [json.dumps({"text": ("good", "bad")[n % 2] + f" text {n}", "label": "01"[n % 2]}) for n in range(64)]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    common = (f"data.path={tmp_path}", "track.mlflow=false", "optimizer.learning_rate=2e-3", "batch.sequences=16")
    tune = lambda start, name, *more: _run(  # noqa: E731
        "finetune", start, "finetune/classification", *common, f"run.dir={tmp_path / name}", *more
    )
    tune(layerwise.parent / "teacher", "teacher", "train.epochs=4")
    of_teacher = (f"distillation.teacher={tmp_path / 'teacher'}", "distillation.label_weight=0")
    layers = ("distillation.kl_weight=0", "distillation.hidden_weight=1", "distillation.attention_weight=1")
    tune(layerwise, "layers", "train.epochs=4", *of_teacher, *layers)
    tune(tmp_path / "layers", "student", "train.epochs=4", *of_teacher, "distillation.kl_weight=1")
    lines = {}
    for name in ("layers", "student"):
        written = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").open()]
        lines[name] = written[0], written[-1]
    first, last = lines["layers"]
    assert last["loss"] == pytest.approx(last["loss_hidden"] + last["loss_attention"], rel=1e-4)
    assert last["loss_hidden"] < first["loss_hidden"]
    first, last = lines["student"]
    assert last["loss"] == pytest.approx(last["loss_kl"], rel=1e-4)
    assert last["loss_kl"] < 0.5 * first["loss_kl"]
    assert last["loss_classes"] < first["loss_classes"], "hard labels have no weight, and are those of the teacher"
    refused = _refused(
        *("finetune", layerwise, "finetune/classification", *common, *of_teacher, "distillation.kl_weight=1"),
        *(f"run.dir={tmp_path / 'refused'}", "objective.labels=['1', '0']"),
    )
    assert "was fine-tuned for objective.labels=['0', '1']" in refused


@pytest.mark.slow
def test_the_generator_is_scored_at_every_checkpoint(electra: Path, tmp_path: Path) -> None:
    request = ("--tasks", "last_word", "--limit", "4", "--model", "generator", "--all-checkpoints")
    _run("eval", electra, *request, "--out", tmp_path / "report")
    found = [json.loads((tmp_path / "report" / f"step-{step:08}" / "report.json").read_text()) for step in (3, 6)]
    assert all(one["results"]["last_word"]["0"]["documents"] == 4 for one in found)


@pytest.mark.slow
def test_a_model_with_disentangled_embeddings_is_fine_tuned_from_their_sum(dataset: Path, tmp_path: Path) -> None:
    """DeBERTa v3: at a rate of almost nothing, the fine-tuned model has the vectors of the discriminator."""
    first, tuned, lines = tmp_path / "first", tmp_path / "tuned", tmp_path / "lines.txt"
    _train("deberta-v3", dataset, first, "train.steps=6", "generator={hidden: 32, heads: 2, layers: 2, ffn: 64}")
    rows = [json.dumps({"text": f"a text {number}", "label": "01"[number % 2]}) for number in range(16)]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    still = ("optimizer={learning_rate: 1e-12, weight_decay: 0.0}", "train.epochs=1", "track.mlflow=false")
    _run("finetune", first, "finetune/classification", f"data.path={tmp_path}", f"run.dir={tuned}", *still)
    lines.write_text("one text\nanother text\n")
    vectors = {}
    for name, run, more in (
        ("discriminator", first, ("--model", "discriminator")),
        ("generator", first, ("--model", "generator")),
        ("tuned", tuned, ()),
    ):
        out = tmp_path / f"{name}.safetensors"
        _run("features", run, lines, *more, "--out", out)
        vectors[name] = load_file(out)["vectors"]
    assert np.abs(vectors["tuned"] - vectors["discriminator"]).max() < 1e-5
    assert np.abs(vectors["generator"] - vectors["discriminator"]).max() > 0.1
