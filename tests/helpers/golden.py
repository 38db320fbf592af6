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

import numpy as np
import torch

from data_pipeline.batch import Rows
from data_pipeline.tokenizers.load import train_tokenizer
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import resolve
from pretrain.data.stream import open_stream
from pretrain.engine.base import TeacherWeights
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.run_length.ramp import tokens_of
from pretrain.run_length.schedule import learning_rate
from pretrain.run_length.segments import run_length
from tests.helpers import classics, command
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
    steps: int = STEPS
    control: str | None = None
    """the case of the same run in fp32, from which the distance is on record"""
    has_teacher: bool = False
    """whether layers are compared with those of a model of twice as many, whose weights are drawn here"""


def _short(config: str, *changes: str, **others: Any) -> Case:
    """Three steps of a tiny model on one rank."""
    changes = ("train.steps=3", "batch={sequences: 4, micro_sequences: 2}", *changes)
    return Case(config, changes, ("one rank",), steps=3, **others)


_TINY = ("model.layers=2", "model.hidden=32", "model.sequence_length=48")
_EXPERTS = (*_TINY, "model.ffn=64", "schedule.warmup_tokens=300", "optimizer.learning_rate=1e-2")
_NO_GROUPS = (
    *_EXPERTS,
    "model.experts={count: 8, top_k: 2, ffn: 16, shared: 1, dense_layers: 1, scores: sigmoid, selection_bias: true, "
    "bias_rate: 0.05, sequence_loss: 0.1}",
)
_LORA = "finetune={lora: {rank: 2, targets: [qkv, projection, fc1, fc2]}}"
_CLIPPED = "optimizer={name: muon, learning_rate: 0.05, qk_clip_threshold: 0.5}"
_ENCODER = (*_TINY, "model.ffn=64", "schedule.warmup_steps=2")
_LSTM = ("model.hidden=32", "model.embedding_size=16", "model.dropout=0", "schedule.warmup_steps=2")


CASES: dict[str, Case] = {
    "gpt": Case("gpt", _GPT),
    "gpt-dropout": Case("gpt", (*_GPT, *_DROPOUT)),
    "gpt-packed": Case("gpt", (*_GPT, "objective.packing=best_fit")),
    "gpt-bf16": Case("gpt", (*_GPT, "precision=bf16"), control="gpt"),
    "gpt-shared": Case("gpt", (*_GPT, *_DROPOUT, "batch.micro_sequences=2"), ("tp2pp2dp2+sp+vp2+full+zero1",)),
    "gpt-sharded": Case("gpt", (*_GPT, *_DROPOUT), ("cp2dp2+zero2",)),
    "bert": Case("bert", (*_OTHERS, *_ASCII)),
    "roberta": Case("roberta", _OTHERS),
    **{name: Case(config, _OTHERS) for name, config in classics.rows("CURVES").items()},
    "xlnet": Case("xlnet", (*_OTHERS, *_ASCII, *_DROPOUT, "model.sequence_length=80")),
    "t5": Case("t5", (*_OTHERS, "model.target_length=16")),
    "transformer": Case("transformer", (*_OTHERS, "model.target_length=64"), dataset="pairs"),
    "bart": Case("bart", (*_OTHERS, *_ASCII, "model.target_length=64")),
    "experts-biased": _short("experts-biased", *_NO_GROUPS),
    "experts": _short("experts", *_EXPERTS, "model.experts.top_k=4"),
    "experts-bf16": _short("experts", *_EXPERTS, "model.experts.top_k=4", "precision=bf16", control="experts"),
    "mtp-packed": _short(
        "mtp",
        *_EXPERTS,
        "model.layers=2",
        "model.mtp.num_layers=2",
        "objective.packing=best_fit",
        "model.experts.count=8",
    ),
    "lora-experts": _short(
        "experts",
        *_EXPERTS,
        "finetune={lora: {rank: 2, targets: [qkv, projection, fc1, fc2]}}",
        "run.start_from=unused",
    ),
    "muon-clipped": _short(
        "gpt",
        *_TINY,
        "schedule.warmup_tokens=300",
        "optimizer={name: muon, learning_rate: 0.05, qk_clip_threshold: 0.5}",
    ),
    "rnn": _short("rnn", *_LSTM, dataset="pairs"),
    "rnn-bf16": _short("rnn", *_LSTM, "precision=bf16", dataset="pairs", control="rnn"),
    "pegasus": _short("pegasus", *_ENCODER, "model.encoder_layers=2", "model.target_length=48"),
    "xlnet-unicode": _short("xlnet", *_ENCODER),
    "electra": _short("electra", *_ENCODER, "generator={hidden: 16, heads: 2}"),
    "tinybert": _short("bert", *_ENCODER, "objective.next_sentence=false", "model.binary_head=false", has_teacher=True),
    **{
        name: _short(config, *changes, dataset=dataset)
        for name, (config, changes, dataset) in classics.rows("GOLDEN").items()
    },
}


def build_datasets(folder: Path) -> None:
    """`folder / "text"`, `folder / "pairs"` and `folder / "characters"`: bytes, and characters, of a made-up language,
    the same on every machine; `folder / "subwords.json"`, a tokenizer of it."""
    draw = random.Random(1234)
    words = ["".join(draw.choice("abdeéiklmnoprstuü") for _ in range(draw.randint(1, 8))) for _ in range(200)]

    def sentence() -> str:
        return " ".join(words[int(200 * draw.random() ** 3)] for _ in range(draw.randint(2, 8))) + "."

    texts = [{"text": " ".join(sentence() for _ in range(draw.randint(1, 12)))} for _ in range(150)]
    sources = [sentence() for _ in range(150)]
    pairs = [{"source": source, "target": " ".join(reversed(source.split()))} for source in sources]
    train_tokenizer([text["text"] for text in texts], "byte_bpe", 300).save(folder / "subwords.json")
    for name, lines, config, kind in (
        ("text", texts, "text", "bytes"),
        ("pairs", pairs, "pairs", "bytes"),
        ("characters", texts, "text", "characters"),
    ):
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        tokenizer = f"tokenizer={{type: {kind}}}"
        settings = (f"input={file}", f"output={folder / name}", tokenizer, "validation_fraction=0.1")
        done = command.run("data", "build", ROOT / "configs" / "data" / f"{config}.yaml", *settings)
        assert done.returncode == 0, done.stderr


def train_case(name: str, layout: str, datasets: Path) -> dict[str, list[Any]]:
    """The case's curve on `layout`, with the datasets of `build_datasets`."""
    curve: dict[str, list[Any]] = run_ranks(LAYOUTS[layout][0], _curve, CASES[name], LAYOUTS[layout][1], datasets)[0]
    return curve


def _curve(case: Case, parallel: str, datasets: Path) -> dict[str, list[Any]]:
    places = (f"data.path={datasets / case.dataset}", "run.dir=unused", f"parallel={parallel}")
    changes = [change.replace("DATASETS", str(datasets)) for change in case.changes]
    file = ROOT / "configs" / "debug" / f"{case.config}.yaml"
    config = resolve(load(RunConfig, file, [*changes, *places]))
    stream, _ = open_stream(config)
    engine = _taught(config) if case.has_teacher else build_engine(config)
    curve: dict[str, list[Any]] = {"data_hash": [], "rows": [], "loss": [], "grad_norm": []}
    samples = 0
    for step in range(1, case.steps + 1):
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


def _taught(config: RunConfig) -> MegatronEngine:
    """An engine whose student has a teacher."""
    tree = config.model_dump(mode="json")
    teacher = tree["model"] | {"layers": 2 * config.model.layers}
    weights = {"label_weight": 0.0, "kl_weight": 0.0, "hidden_weight": 1.0, "attention_weight": 1.0}
    tree["distillation"] = {"teacher": "unused", "teacher_model": teacher, **weights}
    engine = build_engine(RunConfig.model_validate(tree))
    draw = np.random.default_rng(1)
    for _, part in sorted(engine.part(TeacherWeights).weights_state().items()):
        for piece in part.pieces:
            piece.value.copy_(torch.from_numpy(draw.random(piece.value.shape) - 0.5))
    return engine


def _digest(rows: Rows) -> str:
    """Digest of the rows' content, independent of columns' names and order; `data_hash` only identifies samples."""
    columns = (getattr(rows, field.name) for field in fields(Rows))
    digests = [
        hashlib.sha256(f"{values.shape} {values.dtype}".encode() + values.tobytes()).hexdigest()
        for values in columns
        if values is not None
    ]
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()[:16]
