"""Learning rate as a pure function of how far a run is."""

import math

from pretrain.config.run_config import RunConfig


def learning_rate(config: RunConfig, at: tuple[int, int], end: tuple[int, int]) -> float:
    """Learning rate of the step that brings the run to `at`, of a run that is over at `end`: (steps, tokens). Only one
    of the two counts, that which the schedule's lengths are in.

    Linear warm-up from zero; then the decay, which ends where `schedule` says, or with the run, at `final_fraction` of
    the peak and stays there. GPT-3, appendix B: cosine to 10% over 260e9 tokens after a warm-up over 375e6.
    `inverse_sqrt` ends nowhere: peak * sqrt(warm-up / n), after the warm-up of Vaswani et al. 2017, arXiv 1706.03762,
    section 5.3; or, with `warmup: none`, at its peak until then, as T5 (Raffel et al. 2019, arXiv 1910.10683, 3.1.2).
    `wsd` stays at the peak until its decay begins (Hu et al. 2024, arXiv 2404.06395, section 4.2; here a linear one).
    """
    schedule, peak = config.schedule, config.optimizer.learning_rate
    now, last = (at[0], end[0]) if schedule.in_steps else (at[1], end[1])
    warmup = schedule.warmup_length
    if now < warmup:
        return peak if schedule.warmup == "none" else peak * now / warmup
    if schedule.name == "constant":
        return peak
    if schedule.name == "inverse_sqrt":
        return peak * math.sqrt(warmup / now)
    begin, stop = warmup, schedule.decay_length or last
    if schedule.name == "wsd":
        begin, stop = max(warmup, decay_start(config, end)), last
    done = min(1.0, max(0, now - begin) / max(1, stop - begin))
    shape = 0.5 * (1 + math.cos(math.pi * done)) if schedule.name == "cosine" else 1 - done
    return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * shape)


def decay_start(config: RunConfig, end: tuple[int, int]) -> int:
    """Where the decay of `wsd` begins, in the schedule's unit."""
    schedule = config.schedule
    assert schedule.decay_length is not None, "the schema asks for it"
    return (end[0] if schedule.in_steps else end[1]) - schedule.decay_length
