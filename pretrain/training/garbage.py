"""Python's cyclic garbage collector, which may pause one rank in the middle of a step and have all others wait."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_STEPS = 50


@contextmanager
def no_collection_within_steps() -> Iterator[None]:
    """Keeps the collector off: `collect_when_due` alone collects garbage, and looks at none of the objects that exist
    now."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def collect_when_due(step: int) -> None:
    """Collects all garbage after each `EVERY_STEPS` steps: on all ranks after the same one."""
    if step % EVERY_STEPS == 0:
        gc.collect()
