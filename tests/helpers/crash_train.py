"""`pretrain train`, killed at random moments and started again, must be the run that was never interrupted.

    kills = train_campaign(directory, kills=48, seed=1)
    kills = train_campaign(directory, kills=24, seed=1, kind="electra")

Half of the cases stay on one layout, some with dropout, and must equal their layout's uninterrupted run bit for bit;
the others change the layout at every start and must follow the uninterrupted run on one rank. What a crash of the
machine loses beyond this, data that was not synced to the disk, no killed process shows.
"""

import hashlib
import re
from functools import reduce
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any

import numpy as np

from pretrain.checkpoint import files, store
from pretrain.checkpoint.state import Record
from pretrain.run_dir.paths import RECORD
from pretrain.run_dir.records import read_metrics
from tests.helpers import classics, command, crash
from tests.helpers.crash import CORES, Files, Kill, Moment, changed, statuses
from tests.helpers.crash_build import build

PHASES = ("starting up", "loading", "training", "writing a checkpoint", "removing an old one")
Layouts = dict[str, tuple[int, list[str]]]
LAYOUTS: Layouts = {
    "one rank": (1, []),
    "tensor 2": (2, ["parallel.tensor=2"]),
    "pipeline 2": (2, ["parallel.pipeline=2"]),
    "data 2, zero 1": (2, []),
    "data 2, zero 3": (2, ["parallel.zero=3", "parallel.zero_engine=deepspeed"]),
    "tensor 2 x pipeline 2": (4, ["parallel.tensor=2", "parallel.pipeline=2"]),
}
_WEIGHTS = (3, 3, 3, 3, 2, 1)  # in cases that change the layout
_RUNS = [  # (layout, dropout) of cases that stay on one layout, in turn
    ("tensor 2", True),
    ("data 2, zero 1", False),
    ("pipeline 2", True),
    ("data 2, zero 3", False),
    ("one rank", False),
    ("data 2, zero 1", True),
    ("tensor 2 x pipeline 2", False),
]
_DEEPSPEED = "parallel.zero_engine=deepspeed"
EXPERT_LAYOUTS: Layouts = {
    "one rank": (1, []),
    "tensor 2": (2, ["parallel.tensor=2"]),
    "expert 2, zero 1": (2, ["parallel.expert=2"]),
    "expert 2, DeepSpeed's zero 1": (2, ["parallel.expert=2", "parallel.zero=1", _DEEPSPEED]),
    "expert 2, zero 2": (2, ["parallel.expert=2", "parallel.zero=2", _DEEPSPEED]),
    "tensor 2 x expert 2, zero 2": (4, ["parallel.tensor=2", "parallel.expert=2", "parallel.zero=2", _DEEPSPEED]),
}
_EXPERT_RUNS = [
    ("expert 2, zero 2", True),
    ("expert 2, DeepSpeed's zero 1", False),
    ("expert 2, zero 1", True),
    ("tensor 2 x expert 2, zero 2", False),
]
_DATA_LAYOUTS: Layouts = {
    "data 2, zero 1": (2, []),
    "one rank": (1, []),
    "data 2, zero 3": (2, ["parallel.zero=3", _DEEPSPEED]),
    "data 2, zero 2": (2, ["parallel.zero=2", _DEEPSPEED]),
}
_DATA_RUNS = [("data 2, zero 3", True), ("data 2, zero 1", False), ("data 2, zero 2", True)]
_LAYOUTS_OF = {"experts": (EXPERT_LAYOUTS, _EXPERT_RUNS), "rnn": (_DATA_LAYOUTS, _DATA_RUNS)}
_STEPS, _KEEP = 24, 2
_CONFIG = f"""
run: {{name: crash, dir: run, seed: 3}}
train: {{steps: {_STEPS}}}
batch: {{sequences: 4, micro_sequences: 2}}
optimizer: {{learning_rate: 2e-3}}
schedule: {{warmup_tokens: 512}}
data: {{path: ../uninterrupted-build/dataset}}
evaluate: {{every_steps: 8, sequences: 8}}
checkpoint: {{every_steps: 2, keep: {_KEEP}}}
track: {{mlflow: false}}
health: {{timeout_s: 10, rendezvous_timeout_s: 10}}
"""
_SIZE = "layers: 2, hidden: 32, heads: 2, sequence_length: 32"
_WITHOUT_HEADS = _SIZE.replace("heads: 2", "heads: 1")
_ENCODER = f"{_SIZE}, norm: post, norm_eps: 1e-12, activation: gelu, embedding_norm: true"


def _of_classics(table: str) -> dict[str, str]:
    sizes = (("ENCODER", _ENCODER), ("WITHOUT_HEADS", _WITHOUT_HEADS))
    return {
        kind: reduce(lambda text, size: text.replace(*size), sizes, settings)
        for kind, settings in classics.rows(table).items()
    }


KINDS = {  # what makes a step of each kind: one model, two, one whose state has memory, or one of characters
    "gpt": f"model: {{{_SIZE}, attention: {{pattern: [dense, banded], window: 8}}}}",
    "electra": f"""
model: {{family: electra, {_ENCODER}, segments: 2, attention: {{}}}}
generator: {{hidden: 16, heads: 2}}
objective: {{name: replaced_tokens}}
""",
    "student": f"""
model: {{family: bert, {_ENCODER}, attention: {{}}}}
objective: {{name: masked}}
distillation: {{teacher: ../teacher/run, temperature: 2.0, kl_weight: 5.0, label_weight: 2.0, cosine_weight: 1.0}}
""",
    "transformer-xl": f"""
model: {{family: transformer_xl, {_SIZE}, memory_length: 32, norm: post, activation: gelu, qkv_bias: false,
  projection_bias: false, positions: transformer_xl, attention: {{}}}}
""",
    **_of_classics("CRASHES"),
}
_T5 = f"family: t5, encoder_layers: 2, {_SIZE}, norm_type: rms, bias: false, positions: relative, attention: {{}}"
LATER_KINDS = {  # what came later, and needs fewer kills: its state is that of the kinds above
    "pegasus": f"""
model: {{family: transformer, encoder_layers: 2, {_SIZE}, target_length: 16, norm: pre, positions: sinusoidal,
  attention: {{}}}}
objective: {{name: gap_sentences, score_noise: 0.2, kept_fraction: 0.2}}
""",
    "tied-encoder-decoder": f"""
model: {{{_T5}, tie_encoder_decoder: true}}
objective: {{name: span_corruption}}
""",
    "objectives-by-source": f"""
model: {{{_T5}, target_length: 24}}
objective: {{name: span_corruption}}
data: {{sources: [
  {{path: ../uninterrupted-build/dataset, name: short, weight: 2, objective: {{name: span_corruption}}}},
  {{path: ../uninterrupted-build/dataset, name: long, objective: {{name: span_corruption, mean_span: 8.0}}}}]}}
""",
    "experts": f"""
model: {{family: llama, {_SIZE}, norm_type: rms, bias: false, activation: gated_silu, ffn: 48, positions: rotary,
  attention: {{}}, experts: {{count: 4, top_k: 2, scores: sigmoid, selection_bias: true, bias_rate: 0.001,
  balance_loss: 0.01}}}}
""",
    "rnn": f"""
model: {{family: rnn, encoder_layers: 0, {_WITHOUT_HEADS}, positions: nope, recurrent: {{cell: lstm}}, attention: {{}}}}
""",
    "document-mask": f"""
model: {{{_SIZE}, attention: {{}}}}
objective: {{name: causal, document_mask: true}}
""",
    **_of_classics("LATER_CRASHES"),
}
_TEACHER = [*("model.layers=4", "model.heads=4", "train.steps=2"), "schedule.warmup_tokens=128", "distillation={}"]
_DROPOUT = ["model.dropout=0.1", "model.attention_dropout=0.1"]
_DROPOUT_OF = {"rnn": _DROPOUT[:1], **classics.rows("DROPOUT_OF_CRASHES")}
# Survivors of a rank that is killed while they join it give up after two or three times health.timeout_s.
_LIMIT_S = 120.0
_CHECKPOINT = re.compile(r"run/checkpoints/step-\d+")
_UNFINISHED = re.compile(r"run/checkpoints/step-\d+\.tmp")
_UNNAMED = re.compile(r"run/checkpoints/step-\d+\.\w+\.tmp")  # to be removed


def _begun(before: Files, now: Files) -> bool:
    return before.get("run/config.yaml") != now.get("run/config.yaml")


def _writing(before: Files, now: Files) -> bool:
    return any(_UNFINISHED.match(path) for path in changed(before, now))


def _removing(before: Files, now: Files) -> bool:
    touched, finished = changed(before, now), {path for path in now if _CHECKPOINT.fullmatch(path)}
    return any(_UNNAMED.match(path) for path in touched) or (len(finished) > _KEEP and bool(finished & touched))


def _loading(before: Files, now: Files) -> bool:
    return "run/events.jsonl" in changed(before, now) and any(_CHECKPOINT.fullmatch(path) for path in now)


_MOMENTS = {  # and how often each is chosen
    Moment(lambda before, now: True, 0.6): 3,
    Moment(_loading, 0.03): 3,
    Moment(_begun, 0.3): 4,
    Moment(_writing, 0.05): 3,
    Moment(_removing, 0.0): 3,
}


def train_campaign(directory: Path, kills: int, seed: int, kind: str = "gpt") -> list[Kill]:
    """Kills training at least `kills` times. Raises AssertionError if a run differs from an uninterrupted one, a
    survivor hangs, or anything ends with a status that it should not have."""
    of_characters = ["tokenizer={type: characters}"] if "name: character_" in (KINDS | LATER_KINDS)[kind] else []
    build(directory / "uninterrupted-build", *of_characters)
    settings = (KINDS | LATER_KINDS)[kind]
    common = "\n".join(
        line for line in _CONFIG.splitlines() if not ("\ndata:" in settings and line.startswith("data:"))
    )
    (directory / "config.yaml").write_text(f"{common}\n{settings}")
    if kind == "student":
        _train_teacher(directory / "teacher")
    uninterrupted: dict[tuple[str, bool], Path] = {}
    making = Lock()
    expected: dict[Path, tuple[Path, bool]] = {}

    layouts, runs = _LAYOUTS_OF.get(kind, (LAYOUTS, _RUNS))
    noise = _DROPOUT_OF.get(kind, _DROPOUT)

    def case(number: int, kills: int) -> list[Kill]:
        layout, dropout = runs[number // 2 % len(runs)] if number % 2 else (None, False)
        run = (layout or "one rank", dropout)
        with making:
            if run not in uninterrupted:
                uninterrupted[run] = _uninterrupted(directory, run, layouts, noise if dropout else [])
        place, right = directory / f"train-{number:03d}", uninterrupted[run]
        expected[place] = right, layout is not None
        return _case(place, kills, layout, layouts, noise if dropout else [], right, Random(f"{seed}/{number}"))

    kills_done = crash.run_cases(case, kills)
    ends = {place: _end(place) for place in [*expected, *{right for right, _ in expected.values()}]}
    for place, (right, exact) in expected.items():
        (record, tensors), (right_record, right_tensors) = ends[place], ends[right]
        assert record == right_record, f"{place}: the last checkpoint's record"
        assert not exact or tensors == right_tensors, f"{place}: the last checkpoint's tensors"
    return kills_done


def _train_teacher(place: Path) -> None:
    place.mkdir()
    found = statuses(command.start(["train", "../config.yaml", *_TEACHER], 1, place, place / "log"), _LIMIT_S)
    assert set(found) == {0}, (place / "log").read_text()[-3000:]


def _uninterrupted(directory: Path, run: tuple[str, bool], layouts: Layouts, noise: list[str]) -> Path:
    """The run on a layout, with or without dropout, that nothing disturbs."""
    layout, dropout = run
    place = directory / f"uninterrupted, {layout}, dropout {dropout}"
    place.mkdir()
    with CORES:
        found = statuses(_start(place, layouts[layout], noise), _LIMIT_S)
    assert set(found) == {0}, (place / "log").read_text()[-3000:]
    return place


def _start(place: Path, layout: tuple[int, list[str]], noise: list[str]) -> list[BaseProcess]:
    world, parallel = layout
    arguments = ["train", "../config.yaml", *parallel, *noise]
    return command.start(arguments, world, place, place / "log")


def _case(
    place: Path, most: int, layout: str | None, layouts: Layouts, noise: list[str], right: Path, random: Random
) -> list[Kill]:  # fmt: skip
    """One run, on `layout` or on a random one of `layouts` at each start, that ends as the run in `right`."""
    place.mkdir()
    kills: list[Kill] = []
    try:
        finished = False
        while len(kills) < most and not finished:
            killed = _start_and_kill(place, layout or _any_of(layouts, random), layouts, noise, random)
            finished = killed is None
            kills += [] if killed is None else [killed]
            _check_checkpoints(place)
        with CORES:
            found = statuses(_start(place, layouts[layout or _any_of(layouts, random)], noise), _LIMIT_S)
        assert set(found) == {0}, f"the last start, undisturbed, ended with {found}"
        _check_run(place, right, exact=layout is not None)
    except Exception as error:
        crash.explain(error, place, place / "log")
        raise
    return kills


def _any_of(layouts: Layouts, random: Random) -> str:
    return random.choices(list(layouts), _WEIGHTS[: len(layouts)])[0]


def _start_and_kill(place: Path, layout: str, layouts: Layouts, noise: list[str], random: Random) -> Kill | None:
    """None if the run was done before the kill came."""
    world, _ = layouts[layout]
    victims = random.choice([list(range(world)), [random.randrange(world)]])
    moment = random.choices(list(_MOMENTS), list(_MOMENTS.values()))[0]
    with CORES:
        before = crash.files(place)
        processes = _start(place, layouts[layout], noise)
        now = crash.kill(processes, victims, moment, place, before, random)
    found = statuses(processes, _LIMIT_S)
    if now is None:
        assert set(found) == {0}, f"a start on {layout} that nobody killed ended with {found}"
        return None
    done = (place / "run" / "checkpoints" / f"step-{_STEPS:08d}").exists()
    for rank, status in enumerate(found):
        good = status == (-9 if rank in victims else 1) or (done and status == 0)
        assert good, f"rank {rank} of {layout} ended with {status} when {victims} were killed"
    return Kill(layout, "all ranks" if len(victims) == world else "one of them", _phase(before, now))


def _phase(before: Files, now: Files) -> str:
    if _writing(before, now):
        return "writing a checkpoint"
    if _removing(before, now):
        return "removing an old one"
    if _begun(before, now):
        return "training"
    return "loading" if _loading(before, now) else "starting up"


def _check_checkpoints(place: Path) -> None:
    """A crash leaves at most one unfinished checkpoint and never a damaged one."""
    names = [path.name for path in (place / "run" / "checkpoints").glob("*")]
    assert not any(name.endswith(".damaged") for name in names), names
    assert sum(not name.removeprefix("step-").isdigit() for name in names) <= 1, names


def _check_run(place: Path, expected: Path, exact: bool) -> None:
    """The finished run is the expected one: its steps bit for bit if `exact`."""
    lines, wanted = read_metrics(place / "run"), read_metrics(expected / "run")
    assert [line["step"] for line in lines] == list(range(1, _STEPS + 1)), "metrics.jsonl: a step missing or repeated"
    for key in ("data_hash", "tokens", "samples", "learning_rate"):
        assert [line[key] for line in lines] == [line[key] for line in wanted], f"metrics.jsonl: {key}"
    for key in ("loss", "grad_norm"):
        found, right = (np.array([line[key] for line in both]) for both in (lines, wanted))
        apart = np.abs(found - right).max()
        assert apart <= (0 if exact else 1e-5), f"metrics.jsonl: {key} is up to {apart:.2e} apart"
    _check_checkpoints(place)
    for folder in ("run", "run/checkpoints"):
        names, right_names = ({path.name for path in (p / folder).iterdir()} for p in (place, expected))
        assert right_names <= names, f"{folder} lacks {right_names - names}"
        assert len(names - right_names) <= 1, f"left behind in {folder}: {names - right_names}"


def _end(place: Path) -> tuple[dict[str, Any], str]:
    """Record of a run's last checkpoint, without the fields that may differ, and a digest of its tensors: weights,
    state of the optimizer, and memory."""
    checkpoint = place / "run" / "checkpoints" / f"step-{_STEPS:08d}"
    assert files.damage(checkpoint) is None
    manifest, digest = files.Manifest.read(checkpoint), hashlib.sha256()
    for name in sorted(manifest.tensors):
        digest.update(name.encode() + store.read_full_tensor(checkpoint, manifest, name).tobytes())
    record = Record.read(checkpoint / RECORD)
    facts = {"step": record.step, "updates": record.updates, "tokens": record.tokens, "cursor": record.cursor}
    return facts, digest.hexdigest()
