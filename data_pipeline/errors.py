"""The one error that data_pipeline raises at its users."""


class DataError(Exception):
    """What is wrong, in which file, and what to do: one sentence that is shown as it is, without a traceback."""
