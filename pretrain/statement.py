"""What a rank says of itself before ranks begin a run together: its settings, code, libraries and data."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_pipeline.dataset.dataset import Dataset
from pretrain.config.run_config import RunConfig
from pretrain.process.agreement import plain
from pretrain.process.ranks import world_size

_HERE = Path(__file__).parent
_CODE = (_HERE, _HERE.parent / "data_pipeline")
# Machines may have the same data in other places.
_PLACES = ("data.path", "data.cache_dir")


def statement(config: RunConfig, versions: Mapping[str, str], datasets: Sequence[Dataset]) -> dict[str, Any]:
    """By key, as plain values: what `without_data` says, and what the datasets of the run's sources are."""
    identities = {
        f"the data of data.sources[{number}]": dataset.identity[:16] for number, dataset in enumerate(datasets)
    }
    return identities | without_data(config, versions)


def without_data(config: RunConfig, versions: Mapping[str, str]) -> dict[str, Any]:
    """By key, as plain values: every key of the resolved config but where data lies, the version of each library and of
    the code, and the number of ranks."""
    tree = config.model_dump(mode="json")
    sources = [{key: value for key, value in one.items() if key != "path"} for one in tree["data"].pop("sources")]
    said = {key: value for key, value in plain(tree).items() if key not in _PLACES}
    said |= {"data.sources": sources, "the number of ranks (WORLD_SIZE)": world_size()}
    return said | {f"version of {name}": value for name, value in versions.items()} | {"digest of the code": code()}


def code() -> str:
    """Digest of the source files."""
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder.parent)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
