"""Names as MLflow takes them. Imports mlflow, as `mlflow_run.py` does."""

import hashlib
import re
from collections.abc import Callable

from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, path_not_unique, validate_param_and_metric_name

_REFUSED = re.compile(r"[^\w.\- :]")  # within a part of a name, as parts are separated by slashes
_DIGEST_LENGTH = 8


class MlflowNames:
    """Function from names of numbers, parameters and tags to those that MLflow has for them: the same, or, of one that
    MLflow refuses, its letters and a digest of the name, so that two names never become one. `warn` gets a sentence for
    the first of these."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = name if _is_allowed(name) else _replaced(name)
            if self._known[name] != name and sum(known != there for known, there in self._known.items()) == 1:
                self._warn(f"MLflow refuses the name {name[:80]!r}: there it is {self._known[name]}, and others alike")
        return self._known[name]


def _is_allowed(name: str) -> bool:
    """Whether MLflow's own checks accept the name."""
    is_spelled = validate_param_and_metric_name(name) is not None  # type: ignore[no-untyped-call]
    is_path = path_not_unique(name)  # type: ignore[no-untyped-call]
    return is_spelled and not is_path and len(name) <= MAX_ENTITY_KEY_LENGTH


def _replaced(name: str) -> str:
    """A name that is allowed. Its slashes stay where they separate something, as pages group numbers by them."""
    parts = (_REFUSED.sub("_", part) if part.strip(".") else "_" for part in name.split("/"))
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{'/'.join(parts)[: MAX_ENTITY_KEY_LENGTH - _DIGEST_LENGTH - 1]}-{digest}"
