"""PEFT's own model of an adapter, where PEFT is installed: what the gate compares answers with.

Nothing else here imports PEFT, which is no dependency. Without it, the gate compares with what this project makes of an
adapter, and says so.
"""

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pretrain.errors import ConfigError
from pretrain.interop.peft.weights import PeftAdapter

PEFT = "PEFT"
OWN_READING = "this project's own reading of the adapter (peft is not installed)"


def is_installed() -> bool:
    return find_spec("peft") is not None


def with_adapter(hf_model: Any, source: Path, adapter: PeftAdapter) -> tuple[Any, str]:
    """The base model `hf_model` with the adapter in `source`, which is `adapter` to this project, and whose reading of
    it that is. Raises ConfigError for an adapter that PEFT cannot read completely."""
    if not is_installed():
        adapter.apply(hf_model)
        return hf_model, OWN_READING
    return load_with_peft(hf_model, source), PEFT


def load_with_peft(hf_model: Any, source: Path) -> Any:
    """`hf_model` with the layers of PEFT in it. Raises ConfigError for an adapter that it cannot read completely."""
    from peft import PeftModel

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            model = PeftModel.from_pretrained(hf_model, str(source), torch_device="cpu").get_base_model()
        except Exception as error:  # the library raises whatever a value leads to
            raise ConfigError(f"PEFT cannot read {source} ({_line(error)})") from None
    for warning in said:
        if "missing adapter keys" in str(warning.message):
            raise ConfigError(f"{source} is not complete, as PEFT says ({_line(warning.message)})")
    return model


def _line(error: object) -> str:
    return " ".join(str(error).split())[:200]
