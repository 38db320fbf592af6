"""Learning rate as a pure function of how far a run is."""

from pretrain.config.run_config import RunConfig


def learning_rate(config: RunConfig, at: tuple[int, int], end: tuple[int, int]) -> float:
    """Learning rate of the step that brings the run to `at`, of a run that is over at `end`: (steps, tokens). Only one
    of the two counts, that which the schedule's lengths are in. `config/schedule.py` has the shapes."""
    schedule, peak = config.schedule, config.optimizer.learning_rate
    now, last = (at[0], end[0]) if schedule.in_steps else (at[1], end[1])
    if now < schedule.warmup_length:
        return peak if schedule.starts_at_peak else peak * now / schedule.warmup_length
    return peak * schedule.factor(now, last)


def settled_until(config: RunConfig, end: tuple[int, int]) -> float:
    """Up to where, in the schedule's unit, a run that is over at `end` learns at the rates that it would if it went on
    for longer."""
    return config.schedule.settled_until(end[0] if config.schedule.in_steps else end[1])
