"""Request of a rank to all ranks after a step. Ranks exchange their requests, and all do the most urgent one."""

from enum import IntEnum


class Urgency(IntEnum):
    NONE = 0
    SAVE = 1
    """now, though no save is due: one has failed and it is time to try again"""
    STOP = 2
    """save, and end the run: it was asked to"""
    LAST_TRY = 3
    """save, or end the run with an error: too much is in memory only"""
