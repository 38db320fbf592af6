"""Wrong configs and calls, drawn from a seed: what a person could type, and what a slip of the hand makes of it.

for call in calls(seed=1, count=20, config=path): assert problem(call, directory, within_s=30) is None
"""

import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from pretrain.config.run_config import RunConfig
from pretrain.config.section import section_of, variants_of
from pretrain.process.local import free_port
from tests.helpers.command import LAUNCHER, Command

VALUES = (
    "word", "-1", "0", "3", "1e9", "1e12", "1e30", "-1e9", "2147483648", "1e308", "1e-30", "0.5", ".nan", ".inf",
    "-.inf", "inf", "nan", "null", "~", "''", "[]", "[1, 2]", "[[[]]]", "{}", "{a: 1}", "{name: word}", "true", "false",
    "2020-01-01", "2020-13-45", "0x10", "'日本語 😀'", r'"\0"', r'"\ud800"', r'"a\nb"', "'" + "x" * 300 + "'",
    "'" + "x" * 10_000 + "'", "[" * 200, "&a [*a]", "!!binary x", "9" * 5000, "/", ".", "../..", "/dev/null",
    "1e-300", "1e-38", "1e300", "/dev/zero", "/nonexistent", "garbage", "ftp://x/y", "[1000000]", "DATASET",
    "RUN/checkpoints", "RUN/reports", "RUN/..", "[{path: DATASET}, {path: DATASET}]",
    "[{why: x, step: 3, settings: {optimizer.learning_rate: 0.1}}]", "[{step: 3, sample: 8, samples: 8, why: x}]",
)  # fmt: skip
_STEPS = 20  # after which a run counts as training

_CALLS = (
    "train CONFIG model.layers=0", "train CONFIG --nproc 2 model.layers=0", "verify CONFIG --layouts tp0 --out v.json",
    "verify CONFIG --layouts auto --nproc 1000000", "verify CONFIG --layouts tp1000 --steps 1 --full",
    "eval RUN --tasks word --shots 0,1 --out out", "eval RUN --tasks heldout --out CONFIG --limit 1",
    "export RUN --to hf RUN", "import hf DATASET --out out", "compare RUN RUN --out out", "data inspect DATASET",
    "data ledger RUN --json", "data trace RUN --step 1 --text", "data build CONFIG input=CONFIG output=out",
    "translate RUN CONFIG --beam 2 --penalty 1", "generate RUN --prompt a optimizer.learning_rate=1",
    "generate RUN/checkpoints --prompt a", "train /dev/zero", "train CONFIG run.dir=RUN/checkpoints",
)  # fmt: skip
_PLANNED = (
    "plan CONFIG --gpus 4 --hardware h100", "plan gpt3/175b --gpus 1024 --hardware h100 --target cost",
    "plan CONFIG --gpus 4 --hardware h100 --price 2 --watts 700 --save-seconds 10 --restart-seconds 60",
    "plan CONFIG --gpus 4 --hardware h100 --failures-per-gpu-hour 1 --frontier frontier.png", "plan data CONFIG",
    "plan attention CONFIG --png map.png", "scale fit RUN --samples 2 --out law",
    "scale predict RUN --flops 1e9",
    "scale ladder CONFIG --sizes 1M --tokens-per-parameter 20 --out ladder", "launch status RUN", "launch logs RUN",
    "launch slurm CONFIG --nodes 1 --ranks-per-node 4 --time 60 --partition p --memory 9G --dry-run",
    "launch slurm CONFIG --nodes 1 --dry-run --account a --dependency singleton --after launch",
)  # fmt: skip
_PLANNED_WORDS = (
    "1e9", "1e12", "1e300", "1e-300", "nan", "-1", "0", "1000000", "99999999999999999999", "2147483648", "garbage", "",
    "x.doc", "evil foo", "a;b", "a'b", "a\nb", "nowhere/x.png", "/dev/zero", "model.layers=20000", "batch.ramp=null",
    "model.layers=1000000", "model.sequence_length=1000000000", "model.head_dim=100000", "batch.sequences=100000000",
    "--setup", "--sbatch=x", "--srun=;x", "--env=A;B=1", "CONFIG", "RUN", "--top", "--stack", "--as-is", "1-99:99",
)  # fmt: skip
"""words of planning commands, and the values that replace them"""
_WORDS = (
    "train", "inspect", "--nproc", "--layouts", "--tasks", "--shots", "--out", "--to", "--limit", "--step", "--seed",
    "--nothing", "-h", "--", "hf", "heldout", "tp2,x", "tp99999999999999", "pp2+vp1000", "zero9", "tp2tp2", "1", "0",
    "-1", "2", "1e3", "1000000", "0,1", "inf", "x", "", "=", "a=b", "model.layers=", "=1", "model..layers=1", ".", "/",
    "/dev/null", "/proc/x/y", "nowhere", "日本", "x" * 300, "x" * 5000, "a\nb", "CONFIG", "RUN", "DATASET", "s3://", "://",
)  # fmt: skip
_INTERFACES = ("nowhere0", "lo,nowhere0", "", "=")
_LAUNCHED = ("", "0", "1", "2", "-1", "x", "1e3", "65536", "99999999999", "localhost", "no.such.host.invalid", " 1")
_SLURM = (
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID",
    "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST",
)  # fmt: skip
_LIMITED = (
    "train.steps=4",
    "health.timeout_s=2",
    "health.rendezvous_timeout_s=2",
)  # so that all ends, also waiting for ranks


@dataclass(frozen=True)
class Call:
    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def calls(seed: int, count: int, config: Path, run: Path, dataset: Path) -> Iterator[Call]:
    """`count` calls around a good `config`, an existing run and dataset, the same for the same seed (but for paths and
    ports)."""
    chance = random.Random(seed)
    keys = sorted(keys_of(RunConfig))
    for _ in range(count):
        kind = chance.random()
        if kind < 0.55:
            wrong = [f"{chance.choice(keys)}={chance.choice(VALUES)}" for _ in range(chance.choice((1, 1, 2)))]
            wrong = [_filled(one, {"RUN": str(run), "DATASET": str(dataset)}) for one in wrong]
            yield Call(("train", str(config), *_LIMITED, *wrong))
        elif kind < 0.65:
            yield Call(("train", str(_spoilt(config, chance)), *_LIMITED))
        elif kind < 0.75:
            names = chance.sample((*LAUNCHER, *_SLURM), chance.randint(1, 6))
            environment = {name: chance.choice(_LAUNCHED) for name in names}
            environment |= {"GLOO_SOCKET_IFNAME": chance.choice(_INTERFACES)} if chance.random() < 0.3 else {}
            environment |= {"MASTER_PORT": str(free_port())} if chance.random() < 0.5 else {}
            yield Call(("train", str(config), *_LIMITED), environment)
        else:
            places = {"CONFIG": str(config), "RUN": str(run), "DATASET": str(dataset)}
            plans = chance.random() < 0.5
            words = chance.choice(_PLANNED if plans else _CALLS).split()
            for _ in range(chance.choice((0, 1, 1, 2))):
                at = chance.randrange(1, len(words))
                words[at : at + chance.randrange(2)] = [chance.choice(_PLANNED_WORDS if plans else _WORDS)]
            yield Call(tuple(_placed(word, places) for word in words))


def _placed(word: str, places: dict[str, str]) -> str:
    """With places for names of them that stand alone, begin a path, or are the value of a key."""
    return re.sub("^CONFIG$|^RUN(?=$|/)|^DATASET$|(?<=input=)CONFIG|(?<=run.dir=)RUN", lambda one: places[one[0]], word)


def _filled(override: str, places: dict[str, str]) -> str:
    """With places for names of them in the value."""
    return re.sub(r"\b(RUN|DATASET)\b", lambda one: places[one[0]], override)


def keys_of(schema: type[BaseModel], above: str = "") -> Iterator[str]:
    """Every dotted key, of all choices."""
    for name, one in schema.model_fields.items():
        yield above + name
        inner = section_of(one.annotation)
        for kind in [inner] if inner is not None else variants_of(one.annotation).values():
            yield from keys_of(kind, f"{above}{name}.")


def problem(call: Call, directory: Path, within_s: float) -> str | None:
    """What is wrong with how a command ends, in a sentence; None if it ends as commands should, or trains."""
    command = Command(*call.arguments, environment=call.environment)
    metrics = directory / "run" / "metrics.jsonl"
    deadline = time.monotonic() + within_s
    while command.poll() is None:
        if metrics.exists() and metrics.read_bytes().count(b"\n") > _STEPS:
            command.kill()
            return None
        if time.monotonic() > deadline:
            command.kill()
            return f"it did not end within {within_s:g} s: {command.printed[-500:]}"
        time.sleep(0.02)
    status, errors = command.poll(), command.stderr
    if "Traceback" in command.printed:
        return f"a traceback: {command.printed[-3000:]}"
    if status not in (0, 1, 2):
        return f"status {status}: {command.printed[-500:]}"
    sentences = [line for line in errors.splitlines() if line.startswith("pretrain: ")]
    usage = errors.startswith("usage: ") and status == 2
    if status and len(sentences) != 1 and not usage:
        return f"status {status} with {len(sentences)} sentences: {command.printed[-1000:]}"
    if any(len(line) > 2000 for line in sentences):
        return f"a sentence of {max(map(len, sentences)):,} characters"
    return None


def _spoilt(config: Path, chance: random.Random) -> Path:
    """A copy of a config file with some bytes changed, cut out or written twice."""
    content = bytearray(config.read_bytes())
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(content))
        match chance.randrange(3):
            case 0:
                content[at] = chance.randrange(256)
            case 1:
                del content[at : at + chance.randint(1, 30)]
            case 2:
                content[at:at] = content[at : at + chance.randint(1, 60)]
    path = config.with_name(f"spoilt-{chance.randrange(10**9)}.yaml")
    path.write_bytes(content)
    return path
