"""Snapshot of a run at its launch: the resolved config, the version of the code, and its uncommitted changes."""

import json
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from data_pipeline.common.atomic import atomic_write
from pretrain.config.load import dump
from pretrain.config.run_config import RunConfig
from pretrain.errors import unwritable
from pretrain.run_dir.paths import CONFIG

_ROOT = Path(__file__).parents[1]


def take(directory: Path, config: RunConfig) -> Path:
    """Writes the files into `directory`, and returns the path of the config. Raises RunError if that fails."""
    try:
        atomic_write(directory / CONFIG, dump(config).encode())
        atomic_write(directory / "code.json", json.dumps(code(), indent=1).encode() + b"\n")
        patch = _git("diff", "HEAD", "--binary")
        if patch:
            atomic_write(directory / "code.patch", patch)
        else:
            (directory / "code.patch").unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(directory, error) from None
    return directory / CONFIG


def code() -> dict[str, str | bool | None]:
    """Version of the package; in a checkout also the commit, and whether files differ from it."""
    try:
        package: str | None = version("pretrain")
    except PackageNotFoundError:
        package = None
    commit = _git("rev-parse", "HEAD")
    changed = bool(_git("status", "--porcelain", "--untracked-files=no")) if commit else None
    return {"version": package, "commit": commit.decode().strip() if commit else None, "changed": changed}


def _git(*arguments: str) -> bytes | None:
    """Output of git; None: this is no checkout, or git is missing."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        found = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout if found.returncode == 0 else None
