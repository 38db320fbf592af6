"""Real models of others, from GGUF files: they say here what transformers says of the same weights, on one rank and on
several, can be trained on, and reach their published scores. Takes minutes, and 6 GB of memory for Gemma."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from data_pipeline.tokenizers.load import load_tokenizer
from tests.helpers import command
from tests.helpers.benchmarks import benchmarks
from tests.helpers.gguf import gguf
from tests.helpers.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

CONFIGS = {"smollm2": "smollm2/135m", "gemma3": "gemma3/270m"}
PROMPTS = ["The city of Paris is the capital of", "Once upon a time, there was a little"]
LENGTH, NEW_TOKENS = 640, 12  # longer than Gemma's window of 512
LAYOUTS = {
    "smollm2": (6, ("parallel.tensor=3", "parallel.pipeline=2")),  # of its 9 heads
    "gemma3": (4, ("parallel.tensor=2", "parallel.pipeline=2")),  # its single head of keys goes to both tensor ranks
}
GATE = 1e-4


@pytest.fixture(scope="module", params=CONFIGS)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, float]:
    """(model, the run that import makes of it, how far rounding takes its logits)."""
    file, run = gguf(request.param), tmp_path_factory.mktemp(request.param) / "run"
    done = command.run("import", "gguf", file, "--out", run, timeout_s=600)
    assert done.returncode == 0, done.stderr
    found = re.search(r"transformers (\S+?)(?:; limit, .*: (\S+))?\n", done.stdout)
    assert found
    limit = float(found[2] or GATE)
    assert float(found[1]) <= limit, done.stdout
    return request.param, run, limit


# What runs on ranks. transformers takes seconds to import: only where it is needed.


def _original(file: Path, folder: Path) -> tuple[np.ndarray, np.ndarray, list[list[int]], list[list[int]]]:
    """Results of transformers alone on the same weights: ids of a row, the log probability of each given those before
    it, ids of the prompts, and the continuation of each."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from pretrain.interop.gguf.unpack import unpack

    unpack(file, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.from_numpy(np.random.default_rng(0).integers(300, 40_000, (1, LENGTH + 1)))
    with torch.no_grad():
        said = model(ids[:, :-1]).logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
        settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
        texts = [model.generate(torch.tensor([ids]), **settings)[0, len(ids) :].tolist() for ids in prompts]
    assert "France" in tokenizer.decode(texts[0]), "which no weights in another order would know"
    return ids.numpy(), said.numpy(), prompts, texts


def _ours(run: Path, layout: tuple[str, ...], ids: np.ndarray, prompts: list[list[int]]) -> Any:
    from pretrain.checkpoint.state import scoring_config
    from pretrain.evaluate.opening import build_scorer
    from tests.helpers.decoding import greedy

    checkpoint = run / "checkpoints" / "step-00000000"
    engine = build_scorer(scoring_config(checkpoint, list(layout), one_rank=False), checkpoint)
    said = engine.score(Rows.of(ids[:, :-1], ids[:, 1:])).log_probability
    return said, greedy(engine, prompts, NEW_TOKENS)


def test_it_says_what_transformers_says(imported: tuple[str, Path, float], tmp_path: Path) -> None:
    """Log probabilities of a row agree, and so do the beginnings of greedy continuations of prompts."""
    model, run, limit = imported
    ids, expected, prompts, texts = run_ranks(1, _original, gguf(model), tmp_path, timeout_s=600)[0]
    for world, layout in ((1, ()), LAYOUTS[model]):
        said, found = run_ranks(world, _ours, run, layout, ids, prompts, timeout_s=600)[0]
        assert np.abs(said - expected).max() <= limit, layout
        assert found == texts, layout
    tokenizer = load_tokenizer(run / "checkpoints" / "step-00000000" / "tokenizer.model")
    assert [tokenizer.opened(tokenizer.encode(text)) for text in PROMPTS] == prompts
    assert (tokenizer.begin_of_text is not None) == (model == "gemma3")


def test_training_goes_on_from_it(imported: tuple[str, Path, float], tmp_path: Path) -> None:
    """On text of one kind, its held-out loss falls within a few steps."""
    model, source, _ = imported
    numbers = np.random.default_rng(1).integers(2, 99, (4000, 2))
    (tmp_path / "text.txt").write_text("".join(f"{a} boxes of {b} apples are {a * b} apples.\n\n" for a, b in numbers))
    tokenizer = source / "checkpoints" / "step-00000000" / "tokenizer.model"
    files = (f"input={tmp_path / 'text.txt'}", f"output={tmp_path / 'dataset'}", f"tokenizer.path={tokenizer}")
    built = command.run("data", "build", "configs/data/text.yaml", *files, "validation_fraction=0.1")
    assert built.returncode == 0, built.stderr
    small = (
        *("batch.sequences=4", "model.sequence_length=64", "train={steps: 8}", "optimizer.learning_rate=1e-4"),
        *("precision=fp32", "schedule={name: constant}", "evaluate={every_steps: 4, sequences: 8}"),
        *("checkpoint.every_steps=8", "track.mlflow=false", f"run.start_from={source}", f"run.dir={tmp_path / 'run'}"),
    )
    done = command.run(
        "train", f"configs/{CONFIGS[model]}.yaml", f"data.path={tmp_path / 'dataset'}", *small, timeout_s=600
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    heldout = [event["loss"] for event in events if event["event"] == "heldout"]
    assert len(heldout) == 3, "before the first step, and after four and eight"
    assert heldout[0] < 5, "it knows the language: one that guessed would lose 10.8 or more"
    assert heldout[2] < heldout[1] < heldout[0]


ASKED = 150  # questions of each benchmark
PUBLISHED = {"piqa": 0.677, "arc_easy": 0.577}
"""Zero-shot scores of the pretrained Gemma 3 270M in Google's model card, with weights that are not quantized."""


@pytest.mark.parametrize("imported", ["gemma3"], indirect=True)
def test_it_reaches_its_published_scores(imported: tuple[str, Path, float], tmp_path: Path) -> None:
    """Within two standard errors, by the log probability of the whole answer (ARC) or by its characters (PIQA)."""
    asked = ("--tasks", ",".join(PUBLISHED), "--shots", "0", "--limit", str(ASKED), "--data", benchmarks())
    done = command.run("eval", imported[1], *asked, "--out", tmp_path / "report", timeout_s=2700)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "report" / "report.json").read_text())["results"]
    for task, way in (("piqa", "accuracy_per_character"), ("arc_easy", "accuracy_sum")):
        found = results[task]["0"]
        assert found["documents"] == ASKED
        assert abs(found[way] - PUBLISHED[task]) <= 2 * found[f"{way}_stderr"], found
