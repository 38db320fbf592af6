"""A model of the Hugging Face hub as a local folder: its newest commit, or that of a revision, in huggingface_hub's own
cache.

Endpoint, token, cache and offline work are as HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE say. Only
safetensors and what describes a model and its tokenizer is downloaded: no pickles, and no code.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from pretrain.errors import ConfigError

_OF_OWNER = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WITHOUT_OWNER = re.compile(
    "(distil)?gpt2|gpt2-(medium|large|xl)|openai-gpt|ctrl|(distil)?bert-(base|large)(-multilingual)?-(un)?cased|"
    "(distil)?roberta-(base|large)|xlm-roberta-(base|large)|albert-[a-z]+-v[12]|t5-(small|base|large|3b|11b)|"
    "xlnet-(base|large)-cased"
)
"""names of models from before they had owners"""
_DESCRIBING = ["*.json", "*.txt", "*.model", "*.spm", "*.jinja", "README.md"]
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class ModelSource:
    """A folder to import, and what the run says of where it is from."""

    path: Path
    name: str
    """name of the run that imports it, unless it gets another"""
    origin: str | None = None
    """name and commit on the hub; None: the folder is the user's"""


def find(text: str, revision: str | None = None) -> ModelSource:
    """The folder `text`, or else the model of that name on the hub. Raises ConfigError, in one sentence, where it can't
    be downloaded."""
    path = Path(text)
    is_name = _OF_OWNER.fullmatch(text) or _WITHOUT_OWNER.fullmatch(text)
    if path.exists() or not is_name:
        if revision is not None:
            raise ConfigError(f"--revision is of names on the hub, and {text} is a folder: leave it out")
        return ModelSource(path, path.resolve().name)
    described = _download(text, revision, _DESCRIBING)
    commit = described.name
    weights = _weights(described)
    _download(text, commit, weights)
    if not any((described / name).is_file() for name in weights):
        raise ConfigError(
            f"{text} has no {_WEIGHTS} at commit {commit} of the hub, and pickles, which are programs, are not "
            "downloaded: name a --revision with safetensors"
        )
    return ModelSource(described, text.rpartition("/")[2], f"{text} at {commit}")


def _weights(described: Path) -> list[str]:
    """Names of the files of weights: others of a repository may hold them once more."""
    if not (described / _INDEX).is_file():
        return [_WEIGHTS]
    try:
        found = json.loads((described / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [_WEIGHTS]  # reading the folder says what is wrong with the index
    return [_WEIGHTS, *sorted({name for name in found if isinstance(name, str) and name.endswith(".safetensors")})]


def _download(name: str, revision: str | None, files: Iterable[str]) -> Path:
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except GatedRepoError:
        problem = (
            f"{name} is gated: accept its conditions at {constants.ENDPOINT}/{name}, and set HF_TOKEN to a token that "
            "may read it"
        )
    except RepositoryNotFoundError:
        problem = (
            f"{name} is neither a folder here nor a model at {constants.ENDPOINT} that this token may read: check the "
            "name, or set HF_TOKEN"
        )
    except RevisionNotFoundError:
        problem = f"{name} has no revision {revision} at {constants.ENDPOINT}: name a branch, a tag or a commit"
    except LocalEntryNotFoundError as error:
        problem = _unreachable(name, error)
    except HfHubHTTPError as error:
        problem = (
            f"{constants.ENDPOINT} answers {error.response.status_code} for {name}: check HF_TOKEN and HF_ENDPOINT"
        )
    except HFValidationError as error:
        problem = f"{name} is neither a folder here nor a name on the hub ({_line(error)})"
    except Exception as error:  # the library raises whatever its transport does
        problem = f"{name} cannot be downloaded from {constants.ENDPOINT} ({_line(error)}): try again, or give a folder"
    raise ConfigError(problem)


def _unreachable(name: str, error: Exception) -> str:
    missing = f"{name} is no folder here, and the cache {constants.HF_HUB_CACHE} does not have all of it"
    if constants.HF_HUB_OFFLINE:
        return f"{missing}, while HF_HUB_OFFLINE is set: unset it, or give a folder"
    response = getattr(error.__cause__, "response", None)
    if response is not None:
        return f"{constants.ENDPOINT} answers {response.status_code} for {name}: try again, or give a folder"
    reason = _line(error.__cause__ or error)
    return f"{missing}, while {constants.ENDPOINT} cannot be reached ({reason}): check the network, or give a folder"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
