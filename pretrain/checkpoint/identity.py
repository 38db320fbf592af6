"""Identity of a rank at its start: the versions of its software, its code, settings and data.

Ranks compare their fingerprints before a run begins, and a checkpoint records the versions.
"""

import hashlib
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from data_pipeline.dataset.source import DataSource
from pretrain.config.run_config import RunConfig
from pretrain.process.agreement import plain
from pretrain.process.ranks import world_size

_ROOT = Path(__file__).parents[2]
_PACKAGES = (_ROOT / "pretrain", _ROOT / "data_pipeline")
_PATH_KEYS = (
    "data.path",
    "data.tokenizer",
    "data.source_tokenizer",
    "data.cache_dir",
    "objective.chat_template",
    "distillation.teacher",
)  # machines may keep the same data in different places


def rank_fingerprint(config: RunConfig, datasets: Sequence[DataSource]) -> dict[str, Any]:
    """Plain values by name that must be equal on all ranks of a training run: `config_fingerprint`, and the identity of
    each source's dataset."""
    identities = {
        f"the data of data.sources[{number}]": dataset.identity[:16] for number, dataset in enumerate(datasets)
    }
    return identities | config_fingerprint(config)


def config_fingerprint(config: RunConfig) -> dict[str, Any]:
    """Plain values by name: every key of the resolved config except paths of data, the versions, the digest of the code
    and the number of ranks."""
    tree = config.model_dump(mode="json")
    sources = [{key: value for key, value in source.items() if key != "path"} for source in tree["data"].pop("sources")]
    facts = {key: value for key, value in plain(tree).items() if key not in _PATH_KEYS}
    facts |= {"data.sources": sources, "the number of ranks (WORLD_SIZE)": world_size()}
    facts |= {f"version of {name}": value for name, value in versions().items()}
    return facts | {"digest of the code": code_digest()}


def code_digest() -> str:
    """Digest of the source files."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted(package.rglob("*.py")):
            digest.update(f"{path.relative_to(package.parent)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of the software that decides a run's numbers."""
    names = ("torch", "megatron-core", "deepspeed", "webdataset", "sentencepiece", "tokenizers", "numpy")
    own_versions = {"python": platform.python_version(), "pretrain": _code_version()}
    return own_versions | {name: version(name) for name in names}


def _code_version() -> str:
    """The package's version, and the commit where the code is a checkout."""
    try:
        package = version("pretrain")
    except PackageNotFoundError:
        package = "not installed"
    head = _ROOT / ".git" / "HEAD"
    try:
        commit = head.read_text().strip()
        if commit.startswith("ref: "):
            commit = (head.parent / commit[5:]).read_text().strip()
        return f"{package}+{commit[:12]}"
    except OSError:
        return package
