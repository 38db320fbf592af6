"""The model card of an export: what the run says of itself, and what was measured."""

from pathlib import Path

from pretrain.checkpoint.state import Record
from pretrain.config.finetune import Finetune
from pretrain.config.run_config import RunConfig
from pretrain.interop.hf.source_model import Origin
from pretrain.model_spec.parameters import num_parameters, num_trained_parameters
from pretrain.run_length.changes import change_record, describe_change


def text(
    record: Record, config: RunConfig, name: str, difference: float, *, library: str = "transformers",
    reference: str = "transformers", encoder: bool = False, dtype: str = "fp32", origin: Origin | None = None,
) -> str:  # fmt: skip
    """Markdown, with Hugging Face's front matter. `difference`: the largest of logits, or of an encoder's last hidden
    states where it is exported alone, from `reference`. `dtype`: of the stored weights. `origin`: the imported model
    that the run's weights began as."""
    exported, compared = ("its encoder exported", "hidden state") if encoder else ("exported", "logit")
    model, optimizer = config.model, config.optimizer
    sources = "\n".join(f"- {source.path} (weight {source.weight:g})" for source in config.data.resolved_sources)
    versions = ", ".join(f"{package} {version}" for package, version in record.versions.items())
    changes = "".join(f"- {change}\n" for change in _changes(record, config))
    if changes:
        changes = f"\nBatch, optimizer and schedule are as they were at the start of the run, which\n\n{changes}"
    merged = model.trained_by(Finetune())  # low-rank updates are summed into the weights
    size = f"A {model.family} model of {num_parameters(merged, padded=False):,} parameters"
    if library == "peft":
        size = f"{num_trained_parameters(model):,} trained parameters beside a{size[1:]}"
    licence = "" if origin is None or origin.license is None else f"license: {origin.license}\n"
    return f"""---
library_name: {library}
{licence}tags: [{model.family}, pretrain]
---
# {_title(config)}

{size}, {exported} for transformers' `{name}`.

| | |
|---|---|
{_start(config, origin)}| trained | {record.step:,} steps, {record.tokens:,} tokens |
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


def _title(config: RunConfig) -> str:
    """The run's name; of one that started from others' weights its directory, as its config may be for many data sets:
    runs/sst2 of finetune/classification."""
    if config.run.start_from is None:
        return config.run.name
    directory = Path(config.run.dir).absolute()
    return f"{directory.parent.name}, {directory.name}" if directory.name.startswith("seed-") else directory.name


def _start(config: RunConfig, origin: Origin | None) -> str:
    rows = [] if config.run.start_from is None else [("started from", config.start)]
    if origin is not None:
        rows.append(("imported from", origin.name))
        rows.append(("license of the imported model", origin.license or "not stated in its folder: ask its owners"))
    return "".join(f"| {name} | {said} |\n" for name, said in rows)


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
