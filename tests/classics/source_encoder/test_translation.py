"""BART learns to translate from a language that it has never read, by a new encoder in front of its own: in two stages,
each a run of its own."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.tokenizers.load import load_tokenizer, train_tokenizer
from pretrain.classics.source_encoder.key import KEY, SourceEncoderShape
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.run_dir.paths import RECORD, SOURCE_TOKENIZER, RunDir, complete_checkpoints
from pretrain.run_dir.records import read_metrics
from tests.helpers import command

WORDS = {
    "who": ["king", "farmer", "child", "sailor", "teacher", "wolf", "horse", "singer", "doctor", "crow"],
    "which": ["old", "young", "tall", "quiet", "happy", "angry", "clever", "hungry", "white", "small"],
    "does": ["sees", "finds", "calls", "follows", "paints", "carries", "loves", "meets", "hears", "wakes"],
    "how": ["often", "slowly", "gladly", "twice", "again", "today", "never", "early", "alone", "softly"],
}
"""A target language: a sentence is `the WHICH WHO DOES the WHICH WHO HOW`."""
_GREEK = str.maketrans("abcdefghijklmnopqrstuvwxyz", "αβγδεζηθικλμνξοπρστυφχψωςϊϋ"[:26])
BART = """
run: {name: bart, dir: RUN, seed: 5}
train: {steps: 250}
batch: {sequences: 32, micro_sequences: 32}
model: {family: bart, layers: 2, encoder_layers: 2, hidden: 64, heads: 4, sequence_length: 20, target_length: 20,
        norm: post, activation: gelu, positions: {offset: 2}, embedding_norm: true,
        init: {scale_residual: false, std: 0.05}}
objective: {name: denoising}
data: {path: DATA}
optimizer: {learning_rate: 3e-3}
schedule: {name: linear, warmup_steps: 20}
evaluate: {every_steps: 0}
checkpoint: {every_steps: 0}
track: {mlflow: false}
"""
TRANSLATION = """
run: {name: translation, dir: RUN, seed: 5}
train: {steps: 50}
batch: {sequences: 32, micro_sequences: 16}
model: {source_encoder: {layers: 2}}
objective: {name: text_to_text}
finetune: {train: source_encoder}
data: {path: ROWS, source_tokenizer: SOURCE}
optimizer: {learning_rate: 3e-3}
schedule: {name: linear, warmup_steps: 5}
evaluate: {every_steps: 0, figures: [bleu, exact_match]}
checkpoint: {every_steps: 0}
track: {mlflow: false}
"""


def sentence(draw: random.Random) -> str:
    which, who = (draw.sample(WORDS[kind], 2) for kind in ("which", "who"))
    does, how = draw.choice(WORDS["does"]), draw.choice(WORDS["how"])
    return f"the {which[0]} {who[0]} {does} the {which[1]} {who[1]} {how}"


def foreign(text: str) -> str:
    """The sentence in another language: word for word, in other letters."""
    return text.translate(_GREEK)


@pytest.fixture(scope="module")
def languages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BART of the target language (`bart`), pairs (`rows`) and the tokenizer of the source language."""
    folder, draw = tmp_path_factory.mktemp("languages"), random.Random(1)
    texts = [sentence(draw) for _ in range(6000)]
    (folder / "text.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    pairs = [{"input": foreign(text), "target": text} for text in dict.fromkeys(sentence(draw) for _ in range(700))]
    (folder / "rows").mkdir()
    for split, rows in (("train", pairs[:600]), ("validation", pairs[600:650])):
        (folder / f"rows/{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lines = [{"source": row["input"], "target": row["target"]} for row in pairs[600:650]]
    (folder / "lines.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    train_tokenizer([row["input"] for row in pairs[:600]], "wordpiece", 180).save(folder / "source.json")
    train_tokenizer(texts, "wordpiece", 150).save(folder / "target.json")
    config = {
        "input": str(folder / "text.jsonl"),
        "output": str(folder / "data"),
        "tokenizer": {"path": str(folder / "target.json")},
        "validation_fraction": 0.02,
    }
    (folder / "data.yaml").write_text(json.dumps(config))
    built = command.run("data", "build", folder / "data.yaml")
    assert built.returncode == 0, built.stderr
    (folder / "bart.yaml").write_text(BART.replace("RUN", str(folder / "bart")).replace("DATA", str(folder / "data")))
    done = command.run("train", folder / "bart.yaml", "--nproc", "1")
    assert done.returncode == 0, done.stderr
    return folder


def _finetune(folder: Path, start: Path, run: Path, *settings: str, nproc: int = 1) -> None:
    names = {"RUN": run, "ROWS": folder / "rows", "SOURCE": folder / "source.json"}
    text = TRANSLATION
    for name, path in names.items():
        text = text.replace(name, str(path))
    run.with_suffix(".yaml").write_text(text)
    done = command.run("finetune", start, run.with_suffix(".yaml"), *settings, "--nproc", str(nproc))
    assert done.returncode == 0, done.stderr


def _figures(run: Path) -> dict[str, float]:
    report: dict[str, Any] = json.loads((run / "reports/finetune/report.json").read_text())
    figures: dict[str, float] = report["splits"]["validation"]["figures"]
    return figures


@pytest.fixture(scope="module")
def stages(languages: Path) -> tuple[Path, Path]:
    """Runs of the first stage and of the second."""
    new, tuned = languages / "new", languages / "tuned"
    _finetune(languages, languages / "bart", new)
    _finetune(languages, new, tuned, "finetune.train=all", "data.source_tokenizer=null")
    return new, tuned


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_stage_learns_more(languages: Path, stages: tuple[Path, Path], tmp_path: Path) -> None:
    """The first learns from what BART knows, as it does not from random weights."""
    _finetune(languages, languages / "bart", tmp_path / "random", "finetune.weights=random")
    of_random, first, second = (_figures(run)["bleu"] for run in (tmp_path / "random", *stages))
    assert of_random + 0.3 < first < second
    assert second > 0.9


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_commands_read_both_tokenizers_from_the_checkpoint(
    languages: Path, stages: tuple[Path, Path], tmp_path: Path
) -> None:  # fmt: skip
    tuned = stages[-1]
    for run in stages:
        kept = load_tokenizer(complete_checkpoints(RunDir(run).checkpoints)[-1] / SOURCE_TOKENIZER)
        assert kept.identity == load_tokenizer(languages / "source.json").identity
    done = command.run("eval", tuned, "--tasks", "heldout", "--out", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    assert f"bleu {_figures(tuned)['bleu']:.4f}" in done.stdout
    done = command.run("translate", tuned, languages / "lines.jsonl", "--beam", "5", "--out", tmp_path / "hypotheses")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[1]) > 90
    pair = json.loads((languages / "lines.jsonl").read_text().splitlines()[0])
    done = command.run("generate", tuned, "--prompt", pair["source"])
    assert done.returncode == 0, done.stderr
    assert pair["target"] in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_such_a_model_cannot_do_is_said(languages: Path, stages: tuple[Path, Path], tmp_path: Path) -> None:
    new, tuned = stages
    config, other = languages / "tuned.yaml", f"run.dir={tmp_path / 'other'}"
    for arguments, sentence in (
        (["eval", tuned, "--tasks", "arithmetic_2da", "--out", tmp_path / "no"], "score it with `pretrain eval"),
        (["features", tuned, languages / "lines.jsonl", "--text", "source"], "score it with `pretrain eval"),
        (["export", tuned, "--to", "hf", tmp_path / "no"], "which no class of transformers has"),
        (["finetune", new, config, "model.source_encoder.layers=3", other], "does not fit the weights of"),
        (
            ["finetune", new, config, f"data.source_tokenizer={languages / 'target.json'}", other],
            "another tokenizer than data.source_tokenizer",
        ),
        (
            ["finetune", languages / "bart", config, "data.source_tokenizer=null", other],
            "set data.source_tokenizer to the file of its tokenizer",
        ),
    ):
        done = command.run(*arguments)
        assert done.returncode == 2, done.stderr
        assert sentence in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("train", ["source_encoder", "all"])
def test_a_stage_moves_to_other_ranks_within_an_epoch(train: str, languages: Path, tmp_path: Path) -> None:
    settings = [f"finetune.train={train}", "schedule.name=constant", "evaluate.new_tokens=1"]
    for name, calls in {
        "one": [(1, ["train.steps=16"])],
        "moved": [
            (2, ["train.steps=8", "parallel.tensor=2", "parallel.sequence=true"]),
            (2, ["train.steps=16", "parallel.zero=2", "parallel.zero_engine=deepspeed"]),
        ],
    }.items():
        for nproc, arguments in calls:
            _finetune(languages, languages / "bart", tmp_path / name, *settings, *arguments, nproc=nproc)
    one, moved = (read_metrics(tmp_path / name) for name in ("one", "moved"))
    assert [line["step"] for line in moved] == list(range(1, 17))
    assert [line["data_hash"] for line in one] == [line["data_hash"] for line in moved]
    assert [line["loss"] for line in moved] == pytest.approx([line["loss"] for line in one], rel=1e-4)
    assert [line["grad_norm"] for line in moved] == pytest.approx([line["grad_norm"] for line in one], rel=1e-3)


def test_the_shipped_config_has_the_checkpoint_s_model_and_a_source_encoder(tmp_path: Path) -> None:
    start = load(RunConfig, "debug/bart", ["model.vocabulary=300"])
    checkpoint = tmp_path / "step-00000000"
    checkpoint.mkdir()
    (checkpoint / RECORD).write_text(json.dumps({"config": start.model_dump(mode="json")}))
    config = load(RunConfig, "finetune/translation", [f"run.start_from={checkpoint}"])
    assert KEY.of(config.model) == SourceEncoderShape(layers=6)
    assert config.model.without_front_encoder() == start.model.trained_by(config.finetune)
