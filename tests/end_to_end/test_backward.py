"""Runs that read text from its end, on the real commands."""

import json
from pathlib import Path

import pytest

from tests.end_to_end.conftest import CONFIG
from tests.helpers import command
from tests.helpers.prose import prose

BACKWARD = "objective={name: causal, direction: backward}"
pytestmark = pytest.mark.slow


def _dataset(folder: Path, texts: dict[str, list[str]]) -> Path:
    for split, documents in texts.items():
        (folder / f"{split}.txt").write_text("\n\n".join(documents))
    files = [
        f"input={folder / 'train.txt'}",
        f"validation_input={folder / 'validation.txt'}",
        f"output={folder / 'set'}",
    ]
    done = command.run(
        "data", "build", "configs/data/text.yaml", *files, "tokenizer.type=bytes", "txt_documents=paragraph", "steps=[]"
    )
    assert done.returncode == 0, done.stderr
    return folder / "set"


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    """One document each, as a build orders documents by what they say, without white space at its ends."""
    paragraphs = [" ".join(text.split()) for topic in prose() for text in topic.split("\n\n")]
    plain = [text for text in paragraphs if text.isascii() and len(text) > 80]
    return {"train": [" ".join(plain[:600])], "validation": [" ".join(plain[600:640])]}


@pytest.fixture(scope="module")
def run(texts: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _trained(tmp_path_factory.mktemp("backward"), texts, BACKWARD, "parallel.pipeline=2")


def _trained(folder: Path, texts: dict[str, list[str]], *settings: str) -> Path:
    dataset = _dataset(folder, texts)
    path = folder / "config.yaml"
    path.write_text(CONFIG.replace("DATASET", str(dataset)).replace("RUN", str(folder / "run")))
    done = command.run("train", path, *settings, "--nproc", "2" if settings[-1:] == ("parallel.pipeline=2",) else "1")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def _losses(run: Path) -> list[tuple[float, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["loss"], line["grad_norm"]) for line in lines]


def _held_out(run: Path) -> list[float]:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["event"] == "heldout"]


def test_a_backward_run_is_the_forward_run_on_reversed_text(
    run: Path, texts: dict[str, list[str]], tmp_path: Path
) -> None:
    reversed_texts = {split: [text[::-1] for text in documents] for split, documents in texts.items()}
    forward = _trained(tmp_path, reversed_texts, "parallel.pipeline=2")
    assert _losses(run) == _losses(forward)
    assert len(_held_out(run)) == 3
    assert _held_out(run) == _held_out(forward)


def test_a_backward_run_is_scored_and_writes_to_the_left(run: Path, tmp_path: Path) -> None:
    done = command.run("eval", run, "--tasks", "heldout,arbitrary_labels", "--out", tmp_path / "scores")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "scores" / "report.json").read_text())["results"]
    assert results["heldout"]["0"]["bits_per_byte"] > 0
    done = command.run("generate", run, "--prompt", "statement.", "--max-tokens", "8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[prompt] statement.\n[text] ")


def test_what_reads_from_left_to_right_is_refused(run: Path, tmp_path: Path) -> None:
    for arguments, words in (
        (["export", run, "--to", "hf", tmp_path / "hf"], "no class of transformers does"),
        (["generate", run, "--prompt", "a", "--stop", "b"], "--stop ends a text at its right"),
        (["eval", run, "--tasks", "arithmetic_1dc", "--out", tmp_path / "out"], "asks for text"),
        (["train", run.parent / "config.yaml"], "objective.direction"),
    ):
        done = command.run(*arguments)
        assert done.returncode in (1, 2)
        assert words in done.stderr, done.stderr
