"""Calls of many verbs that a slip of the hand or of the mind has changed, drawn from a seed, and how each ends.

for call in mutated_calls(seed=1, count=600): outcome(call, places, directory, within_s=60).problem is None
"""

import multiprocessing
import random
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.build.config import BuildConfig
from pretrain.config.run_config import RunConfig
from tests.helpers.command import Command
from tests.helpers.nonsense import VALUES, keys_of

_RUN_KEYS, _BUILD_KEYS = sorted(keys_of(RunConfig)), sorted(keys_of(BuildConfig))
_SHORT = "train.steps=3 health.timeout_s=20 health.rendezvous_timeout_s=20 evaluate.every_steps=0 run.dir=NEW/run"
_CALLS = {
    "train": f"train CONFIG {_SHORT} schedule.warmup_tokens=256",
    "finetune": f"finetune RUN TONE {_SHORT}",
    "eval": "eval RUN --tasks heldout --shots 0 --limit 2 --seed 1 --out NEW/report",
    "generate": "generate RUN --prompt the --max-tokens 4 --seed 1 --temperature 1 --samples 2",
    "features": "features RUN TEXT --layers 1 --pool mean --batch 2 --out NEW/vectors.safetensors",
    "translate": "translate RUN TEXT --beam 2 --penalty 1 --longest 4",
    "export": "export RUN --to hf NEW/model --dtype fp32 --shard-size 5MB",
    "import": "import hf NOTHING --out NEW/imported",
    "compare": "compare RUN RUN --out NEW/compared.json",
    "replay": "replay RUN --step 9",
    "verify": "verify CONFIG --layouts tp2 --steps 1 --out NEW/verified.json",
    "plan": "plan CONFIG --gpus 4 --hardware h100 --top 2 --price 2",
    "plan data": "plan data BUILD --measure NEW/rates.json",
    "rehearse": "rehearse CONFIG --gpus 2 --hardware h100 --micro-batches 1 --jobs 1",
    "launch slurm": "launch slurm CONFIG --nodes 1 --ranks-per-node 2 --time 60 --restarts 2 --dry-run run.dir=NEW/run",
    "launch kubernetes": "launch kubernetes CONFIG --image a/b:1 --nodes 1 --memory 4Gi --volume shared:/shared "
    "run.dir=/shared/run",
    "launch skypilot": "launch skypilot CONFIG --nodes 1 --cpus 2 --memory 4 "
    "--image registry.example/pretrain:cuda run.dir=/shared/run",
    "scale ladder": "scale ladder CONFIG --sizes 1M,2M --tokens-per-parameter 20 --seeds 1,2 --out NEW/ladder",
    "scale fit": "scale fit LOSSES --samples 2 --seed 1 --out NEW/law",
    "data build": "data build BUILD output=NEW/dataset",
    "data inspect": "data inspect DATASET",
    "data trace": "data trace RUN --step 3 --text",
    "data ledger": "data ledger RUN --json",
    "runs": "runs RUN --sort loss --json",
    "plot": "plot RUN --out NEW/plot.png --over steps",
    "profile": "profile RUN --step 3 --hardware h100",
    "keys": "keys lr --json",
    "completion": "completion bash",
}  # fmt: skip
"""a call of each verb that could be meant; the words in capitals stand for paths"""
_UNSOUND = ("translate", "import", "profile")
"""verbs whose call lacks what it reads: no encoder-decoder, no weights of others and no profile"""
_WEIGHTS = {"train": 6, "finetune": 6, "generate": 2, "eval": 2, "launch slurm": 2, "plan": 2}
_PATHS = ("CONFIG", "RUN", "TONE", "TEXT", "DATASET", "ROWS", "BUILD", "LOSSES", "NOTHING")
_WORDS = (
    "-1", "0", "1", "2", "1e9", "1.5", "nan", "inf", "", "x", "0,0", "1,2,x", "99999999999999999999", "4GB", "../..",
    "/dev/null", "NEW/nowhere/x", "日本", "a b", "--", "-h", "--seed", "--nproc", "--out", "--nothing", "a=b",
    "model.layers=", "=1", "tp2", "tp3", "hf", "h100", "heldout", "CONFIG", "RUN", "ROWS", "bf16", "x" * 300,
)  # fmt: skip
_MUON = "{name: muon, learning_rate: 1e-3"
_OF_RUNS = (
    "evaluate.positive=good", "evaluate.shots=[1]", "evaluate.limit=7", "evaluate.lanes=2", "profile.ranks=[1]",
    "model.attention={pattern: [banded], window: 4096}", "health.replay_every=50", "track.norms_every_steps=50",
    "model.attention.pattern=[dense,banded,dense,banded,dense]", "model.dropout=0.99", "track.offline=true",
    "batch.ramp={start_sequences: 4, increment_sequences: 4, tokens: 1000000000}", "optimizer.eps=1",
    f"optimizer={_MUON}, ns_coefficients: [0, 0, 0]}}", f"optimizer={_MUON}, qk_clip_threshold: 1e-6}}",
    f"optimizer={_MUON}, adjust_lr_fn: original, update_rms: 0.3}}", "model.final_logit_softcap=0.01",
    "schedule={name: linear, decay_steps: 1000}", "health.spike={name: act, k: 0.01}", "optimizer.learning_rate=1e-11",
    "optimizer.weight_decay=400", "schedule={name: linear, final_fraction: 1}", "train.steps=0", "precision=fp12",
)  # fmt: skip
_PLANTED = {
    "train": (
        *_OF_RUNS, "evaluate.new_tokens=5", "finetune.lora={}", "finetune={train: top, layers: 1}",
        "run.dir=DATASET/run", "finetune.adapters={}", "model.mtp={num_layers: 100}",
        "model.mtp={num_layers: 1, loss_scaling_factor: 0}",
        "finetune.lora.targets=[]", "objective.label_smoothing=0.9",
    ),
    "finetune": (
        *_OF_RUNS, "objective.label=text", "objective.pair=label", "finetune.lora={rank: 4096}", "run.dir=ROWS/run",
        "finetune.unfreeze_steps=1000", "finetune={unfreeze_steps: 2}", "evaluate.new_tokens=9", "data.path=SAME",
        "run.start_from=OTHER", "finetune={weights: random, lora: {}}", "finetune.adapters={size: 4096}",
        "objective={name: choice, max_choices: 2, sequence_length: 16} data.path=TWICE", "objective.labels=[bad]",
        "objective.labels=[bad, null]", "objective.labels=[bad, bad]",
    ),
    "generate": ("--seed -1", "--samples 0", "--top-p 2", "--temperature -1"),
    "eval": ("--seed -1", "--shots -1", "--limit 0", "--draws 0"),
    "launch slurm": ("finetune.lora={}", "evaluate.new_tokens=5", "profile.ranks=[1]", "--nodes 0"),
    "launch kubernetes": ("finetune.lora={}", "profile.ranks=[1]", "--nodes 0"),
    "launch skypilot": ("finetune.lora={}", "profile.ranks=[1]", "--nodes 0"),
}  # fmt: skip
"""nonsense that each verb refuses or warns of, whatever else is fine in the call"""
_MACHINERY = re.compile(
    "after validation|Input should|Value error|validation error|NoneType|object has no attribute|not subscriptable|"
    r"0x[0-9a-f]{8}|<class |unsupported operand|AttributeError|AssertionError|IndexError|RuntimeError|\.str'|unhashable"
)
"""what Python and libraries say to programmers"""


@dataclass(frozen=True)
class MutatedCall:
    verb: str
    words: tuple[str, ...]
    nonsense: bool = False
    """it is one that is refused or warned of, in every case"""
    sound: bool = False
    """it is one that is accepted without a warning"""


@dataclass(frozen=True)
class Outcome:
    kind: str
    """refused (status 2), failed (status 1), warned or accepted"""
    problem: str | None
    """what is wrong with that, in a sentence; None: nothing"""
    said: str = ""
    """the warnings, or the last line on stderr"""


def mutated_calls(seed: int, count: int) -> Iterator[MutatedCall]:
    """`count` calls, the same for the same seed: each verb as it is meant, nonsense of every kind, and random slips."""
    chance = random.Random(seed)
    verbs = [verb for verb in _CALLS for _ in range(_WEIGHTS.get(verb, 1))]
    planted = [(verb, words) for verb, all_words in _PLANTED.items() for words in all_words]
    yield from (MutatedCall(verb, tuple(words.split()), sound=verb not in _UNSOUND) for verb, words in _CALLS.items())
    for number in range(count - len(_CALLS)):
        if number < len(planted):
            verb, words = planted[number]
            yield MutatedCall(verb, (*_CALLS[verb].split(), *_parts(words)), nonsense=True)
            continue
        verb = verbs[number % len(verbs)]
        words = _CALLS[verb].split()
        for _ in range(chance.choice((1, 1, 2))):
            words = _mutated(verb, words, chance)
        yield MutatedCall(verb, tuple(words), nonsense=False)


def _parts(words: str) -> list[str]:
    """Options apart from their values, and overrides as they are."""
    return words.split() if words.startswith("--") else re.split(r" (?=[a-z.]+=)", words)


def _mutated(verb: str, words: list[str], chance: random.Random) -> list[str]:
    least = len(verb.split())  # the verb itself stays
    has_config = "CONFIG" in words or "TONE" in words or "BUILD" in words
    kind = chance.random()
    if has_config and kind < 0.55:
        keys = _BUILD_KEYS if "BUILD" in words else _RUN_KEYS
        return [*words, f"{chance.choice(keys)}={chance.choice(VALUES)}"]
    at = chance.randrange(least, len(words)) if len(words) > least else least
    if kind < 0.8:
        return [*words[:at], chance.choice(_WORDS), *words[at + 1 :]]
    if kind < 0.87:
        return words[:at] + words[at + 1 :]
    if kind < 0.94:
        return [*words[:at], chance.choice(_WORDS), *words[at:]]
    return [chance.choice(_PATHS) if word in _PATHS else word for word in words]


def outcome(call: MutatedCall, places: Mapping[str, Path], new: Path, within_s: float) -> Outcome:
    """How the call ends, with `places` for the words that stand for paths; NEW is the empty folder `new`."""
    new.mkdir()
    paths = {**places, "NEW": new}
    pattern = rf"(?<![A-Za-z])({'|'.join(paths)})(?![A-Za-z])"
    command = Command(
        *(re.sub(pattern, lambda found: str(paths[found[0]]), word) for word in call.words), first=_may_start_others
    )
    metrics, deadline = new / "run" / "metrics.jsonl", time.monotonic() + within_s
    try:
        while command.poll() is None:
            trains = metrics.exists() and metrics.read_bytes().count(b"\n") > 20  # more steps than it was to have
            if trains or time.monotonic() > deadline:
                command.kill()
                said = None if trains else f"it did not end within {within_s:g} s: {command.printed[-500:]}"
                return Outcome("warned" if _warnings(command.printed) else "accepted", said)
            time.sleep(0.02)
        return _judged(call, command)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _may_start_others() -> None:
    """Makes a forked command one that may start processes, as `rehearse` does."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def _warnings(printed: str) -> list[str]:
    """Lines that warn, but for those of the rows of every fine-tuning here, some of which are long."""
    return [line for line in printed.splitlines() if "warning: " in line and "lose tokens" not in line]


def _judged(call: MutatedCall, command: Command) -> Outcome:
    status, printed, errors = command.poll(), command.printed, command.stderr
    warned = _warnings(printed)
    accepted = "warned" if warned else "accepted"
    kind = {0: accepted, 2: "refused", 1: "failed"}.get(status or 0, f"status {status}")
    sentences = [line for line in errors.splitlines() if line.startswith("pretrain: ")]
    problem = None
    if "Traceback" in printed:
        problem = f"a traceback: {printed[-2000:]}"
    elif status not in (0, 1, 2):
        problem = f"status {status}: {printed[-500:]}"
    elif status == 2 and len(sentences) != 1:
        problem = f"{len(sentences)} sentences: {printed[-1000:]}"
    elif (
        status == 1 and len(sentences) != 1 and call.verb not in ("verify", "compare", "replay")
    ):  # which found something
        problem = f"status 1 with {len(sentences)} sentences: {printed[-1000:]}"
    elif any(len(line) > 2000 or _MACHINERY.search(line) for line in sentences):
        problem = f"no clear sentence: {errors[-1000:]}"
    elif call.sound and kind != "accepted":
        problem = f"a sound call is {kind}: {printed[:500]} ... {printed[-500:]}"
    elif call.nonsense and kind not in ("refused", "warned"):
        problem = f"nonsense is {kind}: {printed[-500:]}"
    return Outcome(kind, problem, " | ".join(warned or errors.splitlines()[-1:]))


def table(outcomes: Iterator[tuple[str, str]]) -> str:
    """Counts of outcomes by verb, of (verb, kind) pairs."""
    counts: dict[str, dict[str, int]] = {}
    for verb, kind in outcomes:
        row = counts.setdefault(verb, {})
        row[kind] = row.get(kind, 0) + 1
    kinds = ("refused", "failed", "warned", "accepted")
    lines = [f"{'':18}" + "".join(f"{kind:>10}" for kind in kinds)]
    lines += [f"{verb:18}" + "".join(f"{row.get(kind, 0):>10}" for kind in kinds) for verb, row in counts.items()]
    total = [sum(row.get(kind, 0) for row in counts.values()) for kind in kinds]
    return "\n".join([*lines, f"{'in all':18}" + "".join(f"{count:>10}" for count in total)])
