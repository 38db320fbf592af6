"""Final summary of a run or of an import: what is there now, and the commands to run next."""

import shlex
from pathlib import Path

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.model_spec.hf_classes import check_export, has_encoder_alone
from pretrain.observe.memory import Peak, size
from pretrain.plan.memory_check import planned_bytes
from pretrain.run_dir.paths import RunDir

_SENTENCE_TASK = "arithmetic_2da"  # which needs no file


def next_commands(config: RunConfig) -> list[str]:
    """Commands to use a trained model of this kind: each runs unchanged."""
    run, name = _opened(config), Path(config.run.dir).resolve().name
    out = shlex.quote(str(RunDir(config.run.dir).reports / "first"))
    scores = [f"pretrain eval {run} --tasks {tasks} --out {out}"] if (tasks := _tasks(config)) else []
    commands = [*scores, *_texts(config)]
    one = " --model discriminator" if config.generator is not None else ""
    export = f"pretrain export {run}{one} --to hf {shlex.quote(f'exported/{name}')}"
    if _has_a_class_of_hugging_face(config):
        commands.append(export)
    elif has_encoder_alone(config.model):
        commands.append(f"{export} --encoder")
    return commands


def _tasks(config: RunConfig) -> str:
    """Tasks that need no file and that the model can be scored on; empty: none."""
    has_heldout = not config.objective.labelled or config.model.task_head is not None
    sentences = config.objective.predicts_next and not config.objective.backward
    return ",".join([*(["heldout"] if has_heldout else []), *([_SENTENCE_TASK] if sentences else [])])


def after_import(config: RunConfig) -> list[str]:
    """Lines: what can be done with imported weights. TEXT, DATASET, ROWS and CONFIG are for the user to
    fill in."""
    run, first = _opened(config), shlex.quote(str(RunDir(config.run.dir).reports / "first"))
    tasks = [f"pretrain eval {run} --tasks {_SENTENCE_TASK} --out {first}"] if config.objective.predicts_next else []
    if config.objective.labelled:
        scored = f"pretrain eval {run} --tasks heldout data.path=ROWS --out {first}"
        return [
            *_listed("next:", [scored]),
            "to train it on rows of its objective:",
            f"      pretrain finetune {run} CONFIG data.path=ROWS run.dir={shlex.quote(f'{config.run.dir}-trained')}",
        ]
    tokenizer = shlex.quote(f"tokenizer.path={RunDir(config.run.dir).checkpoint(0)}/tokenizer.model")
    data = "data/pairs" if config.objective.name in ("pairs", "tlm") else "data/text"
    more = shlex.join((f"run.start_from={config.run.dir}", f"run.dir={config.run.dir}-trained"))
    train = shlex.quote(str(RunDir(config.run.dir).config))
    return [
        *_listed("next:", [*tasks, *_texts(config)]),
        "to train it, build data with its tokenizer and begin a run with its weights:",
        f"      pretrain data build {data} input=TEXT output=DATASET {tokenizer}",
        f"      pretrain train {train} data.path=DATASET train.steps=1000 {more}",
    ]


def _texts(config: RunConfig) -> list[str]:
    if config.model.front_encoder is not None:
        return [f"pretrain translate {_opened(config)} SOURCES.jsonl"]
    predicts = config.model.has_decoder and config.model.task_head is None
    return [f"pretrain generate {_opened(config)} --prompt The"] if predicts else []


def _opened(config: RunConfig) -> str:
    """The run as an argument of a command that opens its checkpoint."""
    return shlex.quote(config.run.dir) + (" --trust-code" if config.model.attention.functions else "")


def _listed(title: str, commands: list[str]) -> list[str]:
    return [f"{title if not number else '':<6}{line}" for number, line in enumerate(commands)]


def _has_a_class_of_hugging_face(config: RunConfig) -> bool:
    try:
        check_export(config)
    except ConfigError:
        return False
    return True


def stopped(config: RunConfig, step: int) -> str:
    """Summary of a run that was stopped by a signal and can be resumed."""
    checkpoint = RunDir(config.run.dir).checkpoint(step)
    return f"stopped: saved at step {step:,} in {checkpoint}; run the same command again to resume"


def finished(
    config: RunConfig, layout: Layout, step: int, tokens: int, *, heldout: float | None, peak: Peak | None
) -> str:
    """Summary of a finished run; the held-out loss (nats per token) and peak memory where they are known, and of a
    GPU's what the planner had counted."""
    facts = [f"finished: {step:,} steps, {tokens:,} tokens"]
    facts += [] if heldout is None else [f"held-out loss {heldout:.4f}"]
    facts += [] if peak is None else [f"at most {describe(peak)}"]
    if peak is not None and peak.device is not None:
        planned = planned_bytes(config, layout)
        if planned is not None:
            facts.append(f"planned {size(planned)}, {planned / peak.device:.2f} of what the GPU held")
    lines = [", ".join(facts), f"checkpoint: {RunDir(config.run.dir).checkpoint(step)}"]
    return "\n".join([*lines, *_listed("next:", next_commands(config))])


def describe(peak: Peak) -> str:
    """One line."""
    host = f"{size(peak.host)} of the host's memory"
    return f"{host} a rank" if peak.device is None else f"{size(peak.device)} of a GPU's memory and {host} a rank"
