"""`pretrain eval` and `pretrain export` on a run that `pretrain train` made.

Commands are forked.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import environment, write_config
from tests.helpers import command
from tests.helpers.breadth import slow
from tests.helpers.ranks import run_ranks

TASKS = ("--tasks", "heldout,last_word,arithmetic_2da", "--shots", "0,1", "--limit", "6")


@pytest.fixture(scope="module")
def run(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_config(dataset, tmp_path_factory.mktemp("trained"))
    settings = ("model.attention={pattern: [dense]}", "model.sequence_length=64", "parallel.pipeline=2")
    done = command.run("train", path, *settings, "--nproc", "2")
    assert done.returncode == 0, done.stderr
    return path.parent / "run"


def _results(run: Path, out: Path, *more: str) -> Any:
    done = command.run("eval", run, *TASKS, "--out", out, *more)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "report.json").read_text())["results"]


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {name: leaf for key, value in tree.items() for name, leaf in _flat(value, f"{prefix}/{key}").items()}


def test_results_are_the_same_again_and_on_other_layouts(run: Path, tmp_path: Path) -> None:
    first = _results(run, tmp_path / "first")
    assert first == _results(run / "checkpoints" / "step-00000024", tmp_path / "again")
    as_trained = _flat(_results(run, tmp_path / "sharded", "--nproc", "2"))  # pipeline 2
    for name, value in _flat(first).items():
        assert as_trained[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-4)), name


def test_held_out_loss_is_that_of_training(run: Path, tmp_path: Path) -> None:
    done = command.run("eval", run, "--tasks", "heldout", "--limit", "8", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "report.json").read_text())["results"]["heldout"]["0"]["loss"]
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert found == pytest.approx([line["loss"] for line in lines if line["event"] == "heldout"][-1], abs=1e-5)


def test_export_passes_its_gate_and_loads_in_transformers(run: Path, tmp_path: Path) -> None:
    done = command.run("export", run, "--to", "hf", tmp_path / "hf")
    assert done.returncode == 0, done.stderr
    assert "largest logit difference" in done.stdout
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {p.name for p in (tmp_path / "hf").iterdir()}
    again = command.run("export", run, "--to", "hf", tmp_path / "hf")
    assert again.returncode == 2
    assert "is there already" in again.stderr


def test_scoring_a_run_passes_over_damage_and_changes_nothing(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    newest = copy / "checkpoints" / "step-00000024"
    (newest / "tensors-00001.safetensors").write_bytes(b"")
    names = sorted(path.name for path in newest.parent.iterdir())
    out = tmp_path / "out"
    done = command.run("eval", copy, "--tasks", "heldout", "--limit", "2", "--out", out, "--nproc", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("step-00000024/tensors-00001.safetensors has 0 bytes") == 1
    assert json.loads((out / "report.json").read_text())["facts"]["step"] == 16
    assert sorted(path.name for path in newest.parent.iterdir()) == names
    named = command.run("export", newest, "--to", "hf", tmp_path / "hf")
    assert named.returncode == 1
    assert "tensors-00001.safetensors has 0 bytes" in named.stderr
    assert "Traceback" not in named.stderr


def _passages(text: Path, directory: Path) -> Path:
    """LAMBADA's file, made of `text`."""
    passages = [p.replace("\n", " ").split() for p in text.read_text().split("\n\n")]
    passages = [" ".join(words[:24]) for words in passages if len(words) >= 24][:40]
    file = directory / "lambada_test.jsonl"
    file.write_text("".join(json.dumps({"text": p}) + "\n" for p in passages))
    return file


def _scores_of_both(checkpoint: Path, benchmarks: Path) -> Any:
    """(our results, lm-eval's) on LAMBADA's form and on arithmetic, from one engine on tensor 2, as lm-eval's registry
    makes it."""
    import lm_eval
    from lm_eval.api.registry import get_model
    from lm_eval.tasks import TaskManager

    import pretrain.evaluate.lm_eval_model  # noqa: F401  (its name in the registry)
    from pretrain.evaluate.evaluator import evaluate
    from pretrain.evaluate.settings import EvalSettings

    arguments = f"checkpoint={checkpoint},parallel.tensor=2,parallel.pipeline=1"
    model: Any = get_model("pretrain").create_from_arg_string(arguments, {"batch_size": 8, "device": "cpu"})
    ours = evaluate(
        model.engine,
        model.scorer,
        None,
        ["lambada_openai", "arithmetic_1dc"],
        EvalSettings(shots=(0,), data_dir=benchmarks),
    ).results
    manager = TaskManager(include_path=str(benchmarks), include_defaults=False)
    names = ["lambada_openai", "arithmetic_1dc"]
    scored = lm_eval.simple_evaluate(model=model, tasks=names, task_manager=manager, bootstrap_iters=0)
    return ours, scored and scored["results"]  # lm-eval's first rank has the results


def test_lm_eval_drives_the_sharded_engine_to_the_same_scores(
    run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    from pretrain.evaluate.tasks.arithmetic import document
    from tests.unit.evaluate.test_harness import ARITHMETIC, LAMBADA

    file = _passages(text, tmp_path)
    documents = [document("arithmetic_1dc", index, 0) for index in range(40)]
    (tmp_path / "single_digit_three_ops.jsonl").write_text(
        "".join(json.dumps({"context": d.context, "completion": d.target}) + "\n" for d in documents)
    )
    (tmp_path / "lambada.yaml").write_text(LAMBADA.format(file=file))
    (tmp_path / "arithmetic.yaml").write_text(
        ARITHMETIC.format(
            name="arithmetic_1dc",
            file=tmp_path / "single_digit_three_ops.jsonl",
            kind="loglikelihood",
            rest="metric_list: [{metric: acc, aggregation: mean}]",
        )
    )
    ours, theirs = run_ranks(2, _scores_of_both, run / "checkpoints" / "step-00000024", tmp_path)[0]
    lambada = ours["lambada_openai"]["0"]
    assert lambada["documents"] == 40
    assert lambada["perplexity"] == pytest.approx(theirs["lambada_openai"]["perplexity,none"], rel=1e-4)
    assert lambada["accuracy"] == pytest.approx(theirs["lambada_openai"]["acc,none"], abs=1e-4)
    arithmetic = ours["arithmetic_1dc"]["0"]
    assert arithmetic["accuracy"] == pytest.approx(theirs["arithmetic_1dc"]["acc,none"], abs=1e-4)


@pytest.mark.slow
def test_lm_eval_s_command_scores_a_run_as_ours_does(run: Path, text: Path, tmp_path: Path) -> None:
    """On a task of the user's own, as typed in a shell that reaches no network."""
    from tests.unit.evaluate.test_harness import LAMBADA

    task = LAMBADA.replace("lambada_openai", "passages").format(file=_passages(text, tmp_path))
    (tmp_path / "passages.yaml").write_text(task)

    def lm_eval(tasks: str) -> subprocess.CompletedProcess[str]:
        typed = ("--model", "pretrain", "--model_args", f"checkpoint={run}", "--tasks", tasks, "--batch_size", "8")
        places = ("--include_path", tmp_path, "--output_path", tmp_path)
        return subprocess.run(
            [sys.executable, "-m", "pretrain", "lm-eval", *typed, *places],
            env={**environment(), "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
        )

    unknown = lm_eval("passage")
    assert unknown.returncode == 2
    assert "pretrain: lm-eval: Tasks not found: passage; " in unknown.stderr
    assert "Traceback" not in unknown.stderr
    done = lm_eval("passages")
    assert done.returncode == 0, done.stderr
    assert "|perplexity|" in done.stdout.replace(" ", "")
    (results,) = tmp_path.rglob("results_*.json")
    theirs = json.loads(results.read_text())["results"]["passages"]
    ours = command.run("eval", run, "--tasks", "lambada_openai", "--data", tmp_path, "--out", tmp_path / "report")
    assert ours.returncode == 0, ours.stderr
    lambada = json.loads((tmp_path / "report" / "report.json").read_text())["results"]["lambada_openai"]["0"]
    assert lambada["perplexity"] == pytest.approx(theirs["perplexity,none"], rel=1e-4)
    assert lambada["accuracy"] == pytest.approx(theirs["acc,none"], abs=1e-4)


def test_an_interrupted_evaluation_goes_on_and_says_what_one_at_once_says(run: Path, tmp_path: Path) -> None:
    asked = ("--tasks", "arithmetic_2da,last_word", "--shots", "0,2", "--limit", "20")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done = command.run("eval", run, *asked, "--out", whole)
    assert done.returncode == 0, done.stderr
    parts.mkdir()
    lines = (whole / "documents.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 80
    marked = [line.replace(b'"truncated": true', b'"truncated": false') for line in lines[:50:2]]
    (parts / "documents.jsonl").write_bytes(b"".join(marked) + lines[51][:40])  # killed while it wrote
    done = command.run("eval", run, *asked, "--out", parts)
    assert done.returncode == 0, done.stderr
    kept = json.loads((parts / "report.json").read_text())["results"]["last_word"]["0"]["truncated"]
    assert kept < json.loads((whole / "report.json").read_text())["results"]["last_word"]["0"]["truncated"], (
        "not asked again"
    )
    found, expected = (_flat(json.loads((out / "report.json").read_text())["results"]) for out in (parts, whole))
    for name, value in (
        (n, v) for n, v in expected.items() if not n.endswith("truncated")
    ):  # equal but for rounding, which what is scored together changes
        assert found[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-5)), name
    told = [json.loads(line) for line in (parts / "documents.jsonl").read_text().splitlines()]
    assert [(t["task"], t["shots"], t["document"]) for t in told] == [
        (task, shots, document)
        for task in ("arithmetic_2da", "last_word")
        for shots in (0, 2)
        for document in range(20)
    ]


@pytest.mark.slow
def test_every_checkpoint_of_a_run_makes_a_curve(run: Path, tmp_path: Path) -> None:
    asked = ("--tasks", "heldout,arithmetic_2da", "--limit", "8", "--temperature", "0")
    done = command.run("eval", run, *asked, "--all-checkpoints", "--out", tmp_path / "all")
    assert done.returncode == 0, done.stderr
    steps = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert len(steps) > 1
    whole = json.loads((tmp_path / "all" / "report.json").read_text())
    assert [report["facts"]["checkpoint"] for report in whole["reports"]] == steps
    last = command.run("eval", run / "checkpoints" / steps[0], *asked, "--out", tmp_path / "one")
    assert last.returncode == 0, last.stderr
    alone = json.loads((tmp_path / "one" / "report.json").read_text())["results"]
    assert whole["reports"][0]["results"] == alone != whole["reports"][-1]["results"]
    assert "<svg" in (tmp_path / "all" / "report.html").read_text()


MIXTURE = (
    "model.family=llama model.norm_type=rms model.bias=false model.activation=gated_silu model.positions=rotary "
    'model.ffn=48 model.experts={"count":4,"top_k":2}'
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "tasks"),
    [
        ("parallel.tensor=2", "arithmetic_2da,last_word"),  # the first asks for text, which the others make none of
        slow(("parallel.zero=3 parallel.zero_engine=deepspeed", "last_word")),
        slow(("parallel.context=2", "last_word")),
        slow((f"{MIXTURE} parallel.expert=2", "arithmetic_2da,last_word")),
        slow((f"{MIXTURE} parallel.expert=2 parallel.zero=2 parallel.zero_engine=deepspeed", "arithmetic_2da")),
        slow(("parallel.pipeline=2 parallel.virtual=2 model.layers=4", "last_word")),
    ],
)
def test_tasks_during_training_change_nothing_and_say_what_eval_says(
    layout: str, tasks: str, dataset: Path, tmp_path: Path
) -> None:
    """On two ranks, at every fourth step, and what a report of the last checkpoint has."""
    curves = []
    asks = (f"evaluate.tasks=[{tasks}]", "evaluate.shots=[0,1]", "evaluate.limit=6")
    for name, more in (("with", asks), ("without", ())):
        (tmp_path / name).mkdir()
        path = write_config(dataset, tmp_path / name)
        settings = (
            "model.attention={pattern: [dense]}",
            *layout.split(),
            "evaluate.every_steps=4",
            "train.steps=8",
        )
        done = command.run("train", path, *settings, *more, "--nproc", "2")
        assert done.returncode == 0, done.stderr
        lines = (path.parent / "run" / "metrics.jsonl").read_text().splitlines()
        exact = ("loss", "grad_norm", "data_hash")
        curves.append([[json.loads(line)[key] for key in exact] for line in lines])
    assert curves[0] == curves[1]
    events = [json.loads(line) for line in (tmp_path / "with" / "run" / "events.jsonl").read_text().splitlines()]
    found = {event["step"]: event["results"] for event in events if event["event"] == "tasks"}
    assert [*found] == [4, 8]
    asked = ("--tasks", tasks, "--shots", "0,1", "--limit", "6")
    done = command.run("eval", tmp_path / "with" / "run", *asked, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    report = _flat(json.loads((tmp_path / "out" / "report.json").read_text())["results"])
    for name, value in _flat(found[8]).items():
        assert report[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-4)), name
