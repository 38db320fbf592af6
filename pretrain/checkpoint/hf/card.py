"""The model card of an export: what the run says of itself, and what was measured."""

from pretrain.checkpoint.state import Record
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.parameters import num_parameters
from pretrain.run_length.changes import change_record, describe_change


def text(
    record: Record, config: RunConfig, name: str, difference: float, *, library: str = "transformers",
    reference: str = "transformers", encoder: bool = False, dtype: str = "fp32",
) -> str:  # fmt: skip
    """Markdown, with Hugging Face's front matter. `difference`: the largest of logits, or of an encoder's last hidden
    states where it is exported alone, from `reference`. `dtype`: of the stored weights."""
    exported, compared = ("its encoder exported", "hidden state") if encoder else ("exported", "logit")
    model, optimizer = config.model, config.optimizer
    sources = "\n".join(f"- {source.path} (weight {source.weight:g})" for source in config.data.resolved_sources)
    versions = ", ".join(f"{package} {version}" for package, version in record.versions.items())
    changes = "".join(f"- {change}\n" for change in _changes(record, config))
    if changes:
        changes = f"\nBatch, optimizer and schedule are as they were at the start of the run, which\n\n{changes}"
    return f"""---
library_name: {library}
tags: [{model.family}, pretrain]
---
# {config.run.name}

A {model.family} model of {num_parameters(model, padded=False):,} parameters, {exported} for transformers' `{name}`.

| | |
|---|---|
| trained | {record.step:,} steps, {record.tokens:,} tokens |
| objective | {config.objective.name} |
| layers (encoder, decoder) | {model.stacks[0]}, {model.stacks[1]} |
| width, heads, feed-forward | {model.hidden}, {model.heads}, {model.ffn_dim} |
| sequence length | {model.sequence_length} |
| vocabulary | {model.vocabulary} |
| batch | {config.batch.sequences} sequences |
| optimizer | {optimizer.name}, peak learning rate {optimizer.learning_rate:g}, {config.schedule.name} schedule |
| precision | {config.precision} |
| weights stored in | {dtype} |
| low-rank updates | {_updates(config)} |
| seed | {config.run.seed} |
| layout of the last step | {record.layout} |
| largest {compared} difference from {reference} | {difference:.1e} (fp32 weights, made-up input) |
{changes}
Data:

{sources or "- none: the weights were imported"}

Versions: {versions}.
"""


def _updates(config: RunConfig) -> str:
    lora = config.finetune.lora
    if lora is None:
        return "none"
    saved = f"; {' and '.join(lora.modules_to_save)} trained too" if lora.modules_to_save else ""
    return f"rank {lora.rank}, alpha {lora.alpha:g}, of {', '.join(lora.targets)}{saved}"


def _changes(record: Record, config: RunConfig) -> list[str]:
    """Sentences, of the changes of settings that steps of the checkpoint were made with."""
    every = config.run.changes
    return [
        describe_change(change_record(config, number))
        for number in range(len(every))
        if every[number].step < record.step
    ]
