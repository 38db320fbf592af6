"""Runs whose rows continue each other."""

from pretrain.config.run_sections import RunSections


def check_memory(config: RunSections) -> None:
    """Raises ValueError for settings that a model with memory cannot be trained with."""
    if not config.model.memory_length:
        return
    parallel = config.parallel
    for key, is_so, instead in (
        ("parallel.sequence", parallel.sequence, "false"),
        ("parallel.context", parallel.context > 1, "1"),
        ("parallel.virtual", parallel.virtual > 1, "1"),
        ("batch.ramp", config.batch.ramp is not None, "null"),
        ("batch.short", config.batch.short is not None, "null"),
        ("data.phases", bool(config.data.phases), "[]"),
        ("data.sources with several entries", len(config.data.sources) > 1, "one of them"),
        ("distillation.teacher", config.distillation.teacher is not None, "null"),
        ("precision=fp8", config.precision == "fp8", "bf16"),
    ):
        if is_so:
            raise ValueError(
                f"model.memory_length keeps states of each row for the row that continues it, and {key} is not "
                f"supported with that: set it to {instead}, or model.memory_length=0"
            )
    objective = config.objective
    if not (objective.name == "causal" or "order" in objective.columns) or "documents" in objective.columns:
        raise ValueError(
            "model.memory_length is for rows that continue each other: use objective.name=causal without packing "
            "and document_mask, or permuted"
        )
    for skip in config.run.skipped:
        if skip.sample % config.batch.sequences or skip.samples % config.batch.sequences:
            raise ValueError(
                f"run.skipped={skip.sample} does not skip whole batches of {config.batch.sequences} sequences, so "
                "that rows would no longer continue each other"
            )
