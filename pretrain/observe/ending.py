"""What a run says as it ends: what is there now, and the commands that go on from it."""

import shlex
from pathlib import Path

from pretrain.config.run_config import RunConfig
from pretrain.observe.memory import Peak, size

_SENTENCE_TASKS = "heldout,arithmetic_2da"  # which need no file


def checkpoint_of(config: RunConfig, step: int) -> Path:
    """Where the run keeps what it has after `step` steps."""
    return Path(config.run.dir) / "checkpoints" / f"step-{step:08d}"


def next_commands(config: RunConfig) -> list[str]:
    """What can be done with a trained model of this kind, ready to be typed."""
    run, name = shlex.quote(config.run.dir), Path(config.run.dir).name
    run += " --trust-code" if config.model.attention.functions else ""
    tasks = _SENTENCE_TASKS if config.objective.predicts_next else "heldout"
    out = shlex.quote(f"{config.run.dir}/reports/first")
    commands = [f"pretrain eval {run} --tasks {tasks} --out {out}"]
    if config.model.is_encoder_decoder:
        commands.append(f"pretrain translate {run} FILE")
    elif config.objective.predicts_next:
        commands.append(f"pretrain generate {run}")
    return [*commands, f"pretrain export {run} --to hf {shlex.quote(f'exported/{name}')}"]


def stopped(config: RunConfig, step: int) -> str:
    """Of a run that was asked to stop, and goes on later."""
    return f"stopped: saved at step {step:,} in {checkpoint_of(config, step)}; the same command goes on from there"


def finished(config: RunConfig, step: int, tokens: int, heldout: float | None, peak: Peak | None) -> str:
    """Of a run that is done; the held-out loss (nats per token) and memory as far as they are known."""
    facts = [f"finished: {step:,} steps, {tokens:,} tokens"]
    facts += [] if heldout is None else [f"held-out loss {heldout:.4f}"]
    facts += [] if peak is None else [f"at most {describe(peak)}"]
    lines = [", ".join(facts), f"checkpoint: {checkpoint_of(config, step)}"]
    return "\n".join(
        [*lines, *(f"{'next:' if not n else '':<6}{line}" for n, line in enumerate(next_commands(config)))]
    )


def describe(peak: Peak) -> str:
    """One line."""
    host = f"{size(peak.host)} of the host's memory"
    return f"{host} a rank" if peak.device is None else f"{size(peak.device)} of a GPU's memory and {host} a rank"
