"""`pretrain finetune`: a checkpoint learns labels, stops, moves to other ranks, and says how it answers."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretrain.__main__ import main
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.config.shipped import shipped
from pretrain.run_dir.records import read_events, read_metrics
from tests.helpers import command

CONFIG = """
run: {name: tone, dir: RUN, seed: 5}
train: {epochs: 1.5}
batch: {sequences: 8, micro_sequences: 2}
objective: {name: classification, labels: [bad, good], sequence_length: 24}
data: {path: ROWS}
optimizer: {learning_rate: 3e-3}
schedule: {name: linear, warmup_steps: 2}
evaluate: {every_steps: 5}
checkpoint: {every_steps: 5, keep: 9}
track: {mlflow: false}
"""
WORDS = {"bad": "awful poor terrible", "good": "great fine lovely"}


def write_rows(directory: Path, train: int = 64, validation: int = 13) -> Path:
    """Texts of which one word says the label."""
    draw = random.Random(1)
    directory.mkdir()
    for split, count in (("train", train), ("validation", validation)):
        rows = []
        for _ in range(count):
            label = draw.choice(list(WORDS))
            words = [draw.choice(["the", "film", "was", "a", "story"]) for _ in range(draw.randint(2, 6))]
            words.insert(draw.randrange(len(words)), draw.choice(WORDS[label].split()))
            rows.append({"text": " ".join(words), "label": label})
        (directory / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return directory


@pytest.fixture
def tone(tmp_path: Path) -> Callable[..., Path]:
    """Writes a config of a run in `tmp_path / name`."""
    rows = write_rows(tmp_path / "rows")

    def write(name: str) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(CONFIG.replace("ROWS", str(rows)).replace("RUN", str(tmp_path / name)))
        return path

    return write


def report_of(run: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((run / "reports/finetune/report.json").read_text())
    return report


def test_a_run_that_moves_to_other_ranks_learns_the_same_and_answers_the_same(
    uninterrupted: Path, tone: Callable[..., Path], tmp_path: Path
) -> None:
    """`test_finetune_stops.py` also moves it while it is killed and stopped."""
    for name, calls in {
        "one": [["--nproc", "1"]],
        "moved": [["train.epochs=0.7", "--nproc", "1"], ["parallel.tensor=2", "--nproc", "2"]],
    }.items():
        for arguments in calls:
            done = command.run("finetune", uninterrupted, tone(name), "schedule.name=constant", *arguments)
            assert done.returncode == 0, done.stderr
    one, moved = (read_metrics(tmp_path / name) for name in ("one", "moved"))
    assert [line["step"] for line in one] == list(range(1, 13)), "1.5 epochs of 64 rows in batches of 8"
    assert one[-1]["tokens"] == 12 * 8 * 24
    assert [line["data_hash"] for line in one] == [line["data_hash"] for line in moved]
    assert [line["loss"] for line in moved] == pytest.approx([line["loss"] for line in one], rel=1e-4)
    answers = [
        [json.loads(line) for line in (tmp_path / name / "reports/finetune/predictions-validation.jsonl").open()]
        for name in ("one", "moved")
    ]
    assert [row["predicted"] for row in answers[0]] == [row["predicted"] for row in answers[1]]
    assert [row["line"] for row in answers[0]] == list(range(1, 14)), "every row once"
    rows = [json.loads(line) for line in (tmp_path / "rows/validation.jsonl").open()]
    assert [row["expected"] for row in answers[0]] == [row["label"] for row in rows]
    right = sum(row["predicted"] == row["expected"] for row in answers[0])
    assert report_of(tmp_path / "one")["splits"]["validation"]["figures"] == {"accuracy": pytest.approx(right / 13)}
    figures = [event["figures"]["accuracy"] for event in read_events(tmp_path / "one") if event["event"] == "figures"]
    assert figures[-1] == pytest.approx(right / 13)
    assert (tmp_path / "one/reports/finetune/report.html").read_text().count("<svg") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "trained", ["{unfreeze_steps: 2, rate_decay: 0.8}", "{train: head}", "{lora: {rank: 4}}", "{adapters: {size: 8}}"]
)
def test_a_trained_set_moves_to_other_ranks_within_an_epoch(
    trained: str, uninterrupted: Path, tone: Callable[..., Path], tmp_path: Path
) -> None:
    _move(trained, uninterrupted, tone, tmp_path)


def test_adapters_are_the_start_of_a_run_with_the_same(
    uninterrupted: Path, tone: Callable[..., Path], tmp_path: Path
) -> None:
    done = command.run("finetune", uninterrupted, tone("one"), "finetune={adapters: {size: 8}}", "--nproc", "2")
    assert done.returncode == 0, done.stderr
    for setting in ("{adapters: {size: 4}}", "{}"):
        done = command.run("finetune", tmp_path / "one", tone("other"), f"finetune={setting}", "--nproc", "1")
        assert done.returncode == 2
        assert "has adapters of finetune.adapters={'size': 8}, which this run would not read" in done.stderr
    done = command.run("finetune", tmp_path / "one", tone("next"), "finetune={adapters: {size: 8}}", "train.epochs=0.2")
    assert done.returncode == 0, done.stderr
    first, last = read_metrics(tmp_path / "one")[0]["loss"], read_metrics(tmp_path / "one")[-1]["loss"]
    assert last < read_metrics(tmp_path / "next")[0]["loss"] + 0.2 < first + 0.2


def _move(trained: str, start: Path, tone: Callable[..., Path], directory: Path) -> None:
    """Trains once on one rank, and once on two layouts with a stop between them, within the first epoch."""
    settings = ["schedule.name=constant", f"finetune={trained}"]
    stopped = ["train.epochs=0.7", "parallel.pipeline=2", "--nproc", "2"]
    for name, calls in {
        "one": [["--nproc", "1"]],
        "moved": [stopped, ["parallel.zero=2", "parallel.zero_engine=deepspeed", "--nproc", "2"]],
    }.items():
        for arguments in calls:
            done = command.run("finetune", start, tone(name), *settings, *arguments)
            assert done.returncode == 0, done.stderr
    one, moved = (read_metrics(directory / name) for name in ("one", "moved"))
    assert [line["step"] for line in moved] == list(range(1, 13))
    assert [line["data_hash"] for line in one] == [line["data_hash"] for line in moved]
    assert [line["loss"] for line in moved] == pytest.approx([line["loss"] for line in one], rel=1e-4)
    assert [line["grad_norm"] for line in moved] == pytest.approx([line["grad_norm"] for line in one], rel=1e-3)


def test_a_finished_run_answers_alike_in_eval_and_in_transformers(
    uninterrupted: Path, tone: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, report, exported = tmp_path / "done", tmp_path / "report", tmp_path / "hf"
    done = command.run("finetune", uninterrupted, tone("done"), "train.epochs=0.5")
    assert done.returncode == 0, done.stderr
    arguments = ["--tasks", "heldout", "--out", report, "parallel.tensor=2", "--nproc", "2"]
    done = command.run("eval", run, *arguments)
    assert done.returncode == 0, done.stderr
    again = json.loads((report / "report.json").read_text())["splits"]["validation"]
    assert again["figures"] == report_of(run)["splits"]["validation"]["figures"]
    assert again["loss"] == pytest.approx(report_of(run)["splits"]["validation"]["loss"], rel=1e-5)
    answers = [json.loads(line) for line in (report / "predictions-validation.jsonl").open()]
    assert len(answers) == 13
    assert command.run("export", run, "--to", "hf", exported).returncode == 0
    for verb, more in (("generate", ["--prompt", "a"]), ("eval", ["--tasks", "arithmetic_2da", "--out", str(report)])):
        assert main([verb, str(run), *more]) == 2
        assert "predicts no tokens" in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "rows/validation.jsonl").open()]
    found = _answers_of_transformers(exported, [row["text"] for row in rows])
    assert [label for label, _ in found] == [answer["predicted"] for answer in answers]
    assert [confidence for _, confidence in found] == pytest.approx([a["confidence"] for a in answers], abs=1e-5)


def _answers_of_transformers(exported: Path, texts: list[str]) -> list[tuple[str, float]]:
    """Label and probability of each text, all in one padded batch."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = AutoModelForSequenceClassification.from_pretrained(exported).eval()
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    assert (inputs["attention_mask"] == 0).any(), "some rows are padded"
    with torch.no_grad():
        probabilities = model(**inputs).logits.softmax(-1).max(-1)
    labels = [model.config.id2label[number] for number in probabilities.indices.tolist()]
    return list(zip(labels, probabilities.values.tolist(), strict=True))


@pytest.mark.slow
def test_the_best_checkpoint_answers_for_the_run(
    uninterrupted: Path, tone: Callable[..., Path], tmp_path: Path
) -> None:
    """Equal figures follow the best one: the earliest is reported, and is there with the newest."""
    settings = ["checkpoint.best=accuracy", "checkpoint.keep=1", "checkpoint.every_steps=0", "evaluate.every_steps=2"]
    done = command.run("finetune", uninterrupted, tone("best"), "train.epochs=4", *settings)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "best"
    events = read_events(run)
    accuracies = {event["step"]: event["figures"]["accuracy"] for event in events if event["event"] == "figures"}
    best = max(accuracies, key=lambda step: (accuracies[step], -step))
    assert best < max(accuracies), accuracies
    saved = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert saved == ["best", f"step-{best:08d}", "step-00000032"]
    assert events[-1].items() >= {"event": "best", "step": best, "figure": "accuracy"}.items()
    report = report_of(run)
    assert (report["facts"]["step"], report["facts"]["best"]) == (best, "accuracy")
    assert report["splits"]["validation"]["figures"] == {"accuracy": accuracies[best]}
    losses = {event["step"]: event["loss"] for event in events if event["event"] == "heldout"}
    assert report["splits"]["validation"]["loss"] == losses[best], "the weights are those of the best step"
    assert losses[best] != losses[32]
    assert "(the best accuracy of the run)" in (run / "reports/finetune/report.html").read_text()


def _print_answered() -> None:
    """Has the command print which rows it answers."""
    from pretrain.finetune.judge import Judge

    answer = Judge.__call__

    def printing(judge: Judge, split: Any) -> Any:
        print(f"answers {split}")
        return answer(judge, split)

    Judge.__call__ = printing  # type: ignore[method-assign]


def test_the_report_has_the_answers_of_the_last_evaluation(
    uninterrupted: Path, tone: Callable[..., Path], tmp_path: Path
) -> None:
    """Steps 5, 10 and 12, the last one, are evaluated; the report does not evaluate a fourth time."""
    started = command.Command("finetune", uninterrupted, tone("once"), first=_print_answered)
    assert started.wait(120) == 0, started.printed
    assert started.stdout.count("answers validation\n") == 3
    last = [event for event in read_events(tmp_path / "once") if event["event"] == "figures"][-1]
    assert last["step"] == 12
    assert report_of(tmp_path / "once")["splits"]["validation"]["figures"] == last["figures"]


@pytest.mark.slow
def test_random_weights_are_those_that_the_same_model_is_trained_from(
    uninterrupted: Path, tone: Callable[..., Path], tmp_path: Path
) -> None:
    """`finetune.weights=random` takes the model and the tokenizer from the checkpoint, and no weight. `pretrain train`
    writes the same report."""
    settings = ["train.epochs=0.5", "finetune.weights=random"]
    done = command.run("finetune", uninterrupted, tone("random"), *settings)
    assert done.returncode == 0, done.stderr
    assert "started_from" not in [event["event"] for event in read_events(tmp_path / "random")]
    config = load(RunConfig, uninterrupted / "config.yaml")
    model = config.model.model_dump(mode="json", exclude={"task_head"})
    tokenizer = next((uninterrupted / "checkpoints").glob("step-*/tokenizer.model"))
    alone = [f"model={json.dumps(model)}", f"data.tokenizer={tokenizer}", "train.epochs=0.5"]
    done = command.run("train", tone("alone"), *alone)
    assert done.returncode == 0, done.stderr
    done = command.run("finetune", uninterrupted, tone("trained"), "train.epochs=0.5")
    assert done.returncode == 0, done.stderr
    losses = {name: [line["loss"] for line in read_metrics(tmp_path / name)] for name in ("random", "alone", "trained")}
    assert losses["random"] == losses["alone"] != losses["trained"]
    reports = {name: report_of(tmp_path / name) for name in losses}
    assert reports["random"]["splits"] == reports["alone"]["splits"] != reports["trained"]["splits"]
    starts = {name: report["facts"]["start"] for name, report in reports.items()}
    weights = {"random": f"random weights in place of those of {uninterrupted}", "alone": "random weights"}
    assert starts == {**weights, "trained": str(uninterrupted)}


@pytest.mark.slow
def test_each_source_is_judged_apart(uninterrupted: Path, tone: Callable[..., Path], tmp_path: Path) -> None:
    """Also where one has test rows and the other none, and the best checkpoint is that of one source."""
    write_rows(tmp_path / "more", train=24, validation=5)
    (tmp_path / "more/test.jsonl").write_text((tmp_path / "more/train.jsonl").read_text())
    rows = ", ".join(f"{{path: {tmp_path / name}}}" for name in ("rows", "more"))
    settings = [f"data={{sources: [{rows}], mixing: proportional}}", "checkpoint.best=more/accuracy"]
    settings += ["evaluate.figures=[accuracy, more/matthews]"]
    done = command.run(
        "finetune", uninterrupted, tone("several"), *settings, "train.epochs=2", "evaluate.every_steps=4"
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "several"
    report, folder = report_of(run), run / "reports/finetune"
    right = {}
    for source, rows_of_split in {"rows": {"validation": 13}, "more": {"validation": 5, "test": 24}}.items():
        assert {split: one["rows"] for split, one in report["sources"][source].items()} == rows_of_split
        for split, count in rows_of_split.items():
            lines = [json.loads(line) for line in (folder / f"predictions-{source}-{split}.jsonl").open()]
            expected = [json.loads(line)["label"] for line in (tmp_path / source / f"{split}.jsonl").open()]
            assert [line["expected"] for line in lines] == expected
            right[source, split] = sum(line["predicted"] == line["expected"] for line in lines) / count
            assert report["sources"][source][split]["figures"]["accuracy"] == pytest.approx(right[source, split])
    figures = report["splits"]["validation"]["figures"]
    mean = (right["rows", "validation"] + right["more", "validation"]) / 2
    assert figures == {
        "accuracy": pytest.approx(mean),
        "rows/accuracy": pytest.approx(right["rows", "validation"]),
        "more/accuracy": pytest.approx(right["more", "validation"]),
        "more/matthews": report["sources"]["more"]["validation"]["figures"]["matthews"],
    }
    events = read_events(run)
    values = {event["step"]: event["figures"]["more/accuracy"] for event in events if event["event"] == "figures"}
    best = max(values, key=lambda step: (values[step], -step))
    assert (report["facts"]["step"], report["facts"]["best"]) == (best, "more/accuracy")
    assert figures["more/accuracy"] == values[best]
    html = (folder / "report.html").read_text()
    assert "Confusion of rows" in html
    assert "Confusion of more" in html
    assert [f'mean</td><td class="left">{split}' in html for split in ("validation", "test")] == [True, True]


@pytest.mark.slow
def test_several_seeds_are_runs_of_their_own_with_a_spread(
    uninterrupted: Path, tone: Callable[..., Path], tmp_path: Path
) -> None:
    done = command.run("finetune", uninterrupted, tone("seeds"), "train.epochs=0.5", "--seeds", "1,2")
    assert done.returncode == 0, done.stderr
    losses = [[line["loss"] for line in read_metrics(tmp_path / f"seeds/seed-{seed}")] for seed in (1, 2)]
    assert len(losses[0]) == len(losses[1]) == 4
    assert losses[0] != losses[1]
    values = [
        report_of(tmp_path / f"seeds/seed-{seed}")["splits"]["validation"]["figures"]["accuracy"] for seed in (1, 2)
    ]
    table = [line.split()[:4] for line in done.stdout.splitlines()]
    assert ["validation", "accuracy", "2", f"{sum(values) / 2:.4f}"] in table


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["checkpoint.best=f1"], "checkpoint.best=f1 is not computed by this run: list it in evaluate.figures"),
        (["checkpoint.best=accuracy", "evaluate.every_steps=0"], "set evaluate.every_steps"),
        (["evaluate.figures=[pearson]"], "pearson does not suit the objective classification"),
        (["objective.labels=[bad, good, odd]"], "has the label 'odd'"),
        (["objective.labels=[bad, fine]"], "rows/train.jsonl, line"),
        (["objective.sequence_length=64"], "more than the model's model.sequence_length=32"),
        (["model.task_head={kind: token, outputs: 2}"], "is not the head of objective.name=classification"),
        (["objective.z_loss=1e-4"], "leave it out for classification"),
        (["data.path=nowhere"], "train.jsonl is missing"),
        (["model.hidden=64"], "pretrain: model.hidden=64 does not fit the weights of run.start_from="),
        (["model.layers=4"], "which have model.layers=2: leave it out"),
        (["model.mup.base_width=8"], "were trained with model.mup=null"),
        (["--seeds", "1,1"], "names a seed twice"),
    ],
)
def test_mistakes_are_one_sentence_before_the_first_step(
    uninterrupted: Path,
    tone: Callable[..., Path],
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["finetune", str(uninterrupted), str(tone("wrong")), *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1


_OF_ENCODER_DECODERS = ("finetune/translation", "finetune/text-task", "finetune/summaries")
"""see tests/classics/source_encoder, test_multitask.py, and docs/summaries.md"""


@pytest.mark.parametrize(
    "name", [name for name in shipped() if name.startswith("finetune/") and name not in _OF_ENCODER_DECODERS]
)
def test_a_shipped_config_has_the_checkpoint_s_model(uninterrupted: Path, name: str) -> None:
    config = load(
        RunConfig, name, [f"run.start_from={uninterrupted}", "model.dropout=0.1", "objective.sequence_length=null"]
    )
    start = load(RunConfig, uninterrupted / "config.yaml").model
    assert (config.model.task_head is None) == (name == "finetune/instructions")
    expected = start.model_copy(update={"dropout": 0.1, "task_head": config.model.task_head})
    assert config.model == expected.trained_by(config.finetune)


def test_a_start_without_a_checkpoint_is_refused(tone: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["finetune", "nowhere", str(tone("wrong"))]) == 2
    assert "run.start_from=nowhere is neither a checkpoint nor a run that has one" in capsys.readouterr().err


TEXTS = """
run: {name: replies, dir: RUN, seed: 5}
train: {epochs: 1}
batch: {sequences: 8, micro_sequences: 2}
objective: {name: instructions, packing: rows}
data: {path: ROWS}
optimizer: {learning_rate: 3e-3}
evaluate: {new_tokens: 4}
track: {mlflow: false}
"""


@pytest.mark.slow
def test_texts_are_judged_by_a_layout_that_writes_them_also_after_the_end(uninterrupted: Path, tmp_path: Path) -> None:
    rows, run = tmp_path / "replies", tmp_path / "run"
    rows.mkdir()
    for split, count in (("train", 16), ("validation", 5), ("test", 3)):
        of_split = [{"prompt": f"the word {number} is", "response": " what it is"} for number in range(count)]
        (rows / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in of_split))
    config = tmp_path / "replies.yaml"
    config.write_text(TEXTS.replace("ROWS", str(rows)).replace("RUN", str(run)))
    arguments = ["finetune", uninterrupted, config]
    done = command.run(*arguments, "parallel.context=2", "--nproc", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the answers of the model are not judged") == 1
    assert not (run / "reports/finetune").exists()
    done = command.run(*arguments, "parallel.tensor=2", "--nproc", "2")
    assert done.returncode == 0, done.stderr
    report, folder = report_of(run), run / "reports/finetune"
    assert {split: one["rows"] for split, one in report["splits"].items()} == {"validation": 5, "test": 3}
    lines = [json.loads(line) for line in (folder / "predictions-validation.jsonl").open()]
    assert [line["line"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(line["expected"] == [" what it is"] for line in lines)
    (event,) = (event for event in read_events(run) if event["event"] == "figures")
    assert event["step"] == 2
    assert event["figures"] == report["splits"]["validation"]["figures"]
    assert f"validation (5 rows): rougeL {event['figures']['rougeL']:.4f}" in done.stdout
    html = (folder / "report.html").read_text()
    wrong = [line for line in lines if line["predicted"] != "what it is"]
    assert html.count('<mark class="wrong">') == len(wrong) > 0
    assert '<mark class="right"> what it is</mark>' in html
    assert "Confusion" not in html
    out = tmp_path / "again"
    done = command.run("eval", run, "--tasks", "heldout", "--out", out)
    assert done.returncode == 0, done.stderr
    again = json.loads((out / "report.json").read_text())
    assert again["cut"] == {"replies": {"validation": 0, "test": 0}}
    for split in ("validation", "test"):
        assert again["splits"][split]["figures"] == report["splits"][split]["figures"]
        assert again["splits"][split]["loss"] == pytest.approx(report["splits"][split]["loss"], rel=1e-5)
        assert (out / f"predictions-{split}.jsonl").read_text() == (folder / f"predictions-{split}.jsonl").read_text()
    done = command.run(
        "eval", run, "--tasks", "heldout", "--out", tmp_path / "no", "parallel.context=2", "--nproc", "2"
    )
    assert done.returncode == 2
    assert "the answers of the model are not judged" in done.stderr
