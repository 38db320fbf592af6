"""Training curves to the last bit: what a change that is to change no number is held against.

A case is a config of configs/debug made small, with a dataset made here, on one rank and on ranks that share the model.
All that this knows of the code that is watched is in its imports.
"""

import hashlib
import json
import random
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from data_pipeline.batch import Rows
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import resolve
from pretrain.data.stream import open_stream
from pretrain.run_length.ramp import tokens_of
from pretrain.run_length.schedule import learning_rate
from pretrain.run_length.segments import run_length
from tests.helpers import command
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine

STEPS = 10
ROOT = Path(__file__).parents[2]

LAYOUTS: dict[str, tuple[int, str]] = {
    "one rank": (1, "{}"),
    "tp2pp2": (4, "{tensor: 2, pipeline: 2}"),
    "tp2pp2dp2+sp+vp2+full+zero1": (
        8,
        "{tensor: 2, pipeline: 2, sequence: true, virtual: 2, recompute: full, zero: 1}",
    ),
    "cp2dp2+zero2": (4, "{context: 2, zero: 2, zero_engine: deepspeed}"),
}
"""name -> (ranks, parallel)"""

_SIZES = (f"train.steps={STEPS}", "model.hidden=64", "model.sequence_length=64")
_GPT = (*_SIZES, "batch={sequences: 8, micro_sequences: 4}", "model.attention.window=16", "schedule.warmup_tokens=2048")
_OTHERS = (*_SIZES, "batch={sequences: 8, micro_sequences: 4}", "schedule.warmup_steps=4", "model.ffn=128")
_ASCII = ("objective.boundaries=ascii",)
"""the rule by which words and sentences were found when the curves were recorded"""
_DROPOUT = ("model.dropout=0.1", "model.attention_dropout=0.1")


@dataclass(frozen=True)
class Case:
    config: str
    """of configs/debug"""
    changes: tuple[str, ...]
    """to it"""
    layouts: tuple[str, ...] = ("one rank", "tp2pp2")
    dataset: str = "text"


CASES: dict[str, Case] = {
    "gpt": Case("gpt", _GPT),
    "gpt-dropout": Case("gpt", (*_GPT, *_DROPOUT)),
    "gpt-packed": Case("gpt", (*_GPT, "objective.packing=best_fit")),
    "gpt-bf16": Case("gpt", (*_GPT, "precision=bf16")),
    "gpt-shared": Case("gpt", (*_GPT, *_DROPOUT, "batch.micro_sequences=2"), ("tp2pp2dp2+sp+vp2+full+zero1",)),
    "gpt-sharded": Case("gpt", (*_GPT, *_DROPOUT), ("cp2dp2+zero2",)),
    "bert": Case("bert", (*_OTHERS, *_ASCII)),
    "roberta": Case("roberta", _OTHERS),
    "deberta": Case("deberta", _OTHERS),
    "xlnet": Case("xlnet", (*_OTHERS, *_ASCII, *_DROPOUT, "model.sequence_length=80")),
    "t5": Case("t5", (*_OTHERS, "model.target_length=16")),
    "transformer": Case("transformer", (*_OTHERS, "model.target_length=64"), dataset="pairs"),
    "bart": Case("bart", (*_OTHERS, *_ASCII, "model.target_length=64")),
}


def build_datasets(folder: Path) -> None:
    """`folder / "text"` and `folder / "pairs"`: bytes of a made-up language, the same on every machine."""
    draw = random.Random(1234)
    words = ["".join(draw.choice("abdeéiklmnoprstuü") for _ in range(draw.randint(1, 8))) for _ in range(200)]

    def sentence() -> str:
        return " ".join(words[int(200 * draw.random() ** 3)] for _ in range(draw.randint(2, 8))) + "."

    texts = [{"text": " ".join(sentence() for _ in range(draw.randint(1, 12)))} for _ in range(150)]
    sources = [sentence() for _ in range(150)]
    pairs = [{"source": source, "target": " ".join(reversed(source.split()))} for source in sources]
    for name, lines, config in (("text", texts, "text"), ("pairs", pairs, "pairs")):
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        settings = (f"input={file}", f"output={folder / name}", "tokenizer={type: bytes}", "validation_fraction=0.1")
        done = command.run("data", "build", ROOT / "configs" / "data" / f"{config}.yaml", *settings)
        assert done.returncode == 0, done.stderr


def train_case(name: str, layout: str, datasets: Path) -> dict[str, list[Any]]:
    """The case's curve on `layout`, with the datasets of `build_datasets`."""
    curve: dict[str, list[Any]] = run_ranks(LAYOUTS[layout][0], _curve, CASES[name], LAYOUTS[layout][1], datasets)[0]
    return curve


def _curve(case: Case, parallel: str, datasets: Path) -> dict[str, list[Any]]:
    places = (f"data.path={datasets / case.dataset}", "run.dir=unused", f"parallel={parallel}")
    file = ROOT / "configs" / "debug" / f"{case.config}.yaml"
    config = resolve(load(RunConfig, file, [*case.changes, *places]))
    stream, _ = open_stream(config)
    engine = build_engine(config)
    curve: dict[str, list[Any]] = {"data_hash": [], "rows": [], "loss": [], "grad_norm": []}
    samples = 0
    for step in range(1, STEPS + 1):
        everyones = stream.batch(samples, config.batch.sequences, 0, 1)
        batch = stream.batch(samples, config.batch.sequences, engine.data_rank, engine.data_world)
        samples = batch.cursor.samples
        rate = learning_rate(config, (step, tokens_of(config, samples)), run_length(config))
        result = engine.train_step(batch, rate, step)
        curve["data_hash"].append(batch.data_hash)
        curve["rows"].append(_digest(everyones))
        curve["loss"].append(result.loss_sum / result.token_count)
        curve["grad_norm"].append(result.grad_norm)
    return curve


def _digest(rows: Rows) -> str:
    """Digest of the rows' content, independent of columns' names and order; `data_hash` only identifies samples."""
    columns = (getattr(rows, field.name) for field in fields(Rows))
    digests = [
        hashlib.sha256(f"{values.shape} {values.dtype}".encode() + values.tobytes()).hexdigest()
        for values in columns
        if values is not None
    ]
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()[:16]
