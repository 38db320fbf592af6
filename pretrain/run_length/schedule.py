"""The learning rate as a pure function of a run's progress."""

from pretrain.config.run_config import RunConfig


def learning_rate(config: RunConfig, at: tuple[int, int], end: tuple[int, int]) -> float:
    """Learning rate of the step that brings the run to `at`, for a run that ends at `end`: (steps, tokens). Of the two
    only the unit of the schedule's lengths counts, but in a power law of tokens. `config/schedule.py` defines the
    shapes."""
    schedule = config.schedule
    peak = min(config.optimizer.learning_rate, schedule.ceiling(at[1], config.batch.sequences))
    now, last = (at[0], end[0]) if schedule.in_steps else (at[1], end[1])
    if now < schedule.warmup_length:
        return peak if schedule.starts_at_peak else peak * now / schedule.warmup_length
    return peak * schedule.factor(now, last)


def settled_until(config: RunConfig, end: tuple[int, int]) -> float:
    """The position, in the schedule's unit, up to which the learning rates of a run that ends at `end` would be the
    same in a longer run."""
    return config.schedule.settled_until(end[0] if config.schedule.in_steps else end[1])
