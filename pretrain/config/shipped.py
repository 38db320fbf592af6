"""Config files that come with the package: `gpt3/125m` is configs/gpt3/125m.yaml, wherever the package is installed.

`pretrain/configs` is a link to `configs` in a checkout, and a folder of copies in an installed package.
"""

import os.path
from pathlib import Path

from data_pipeline.common.suggestions import close_matches, did_you_mean
from pretrain.errors import ConfigError

SHIPPED = Path(__file__).parents[1] / "configs"
_MOST = 3  # suggestions


def shipped() -> dict[str, Path]:
    """The configs that a command accepts, by name, without those that only others extend."""
    found = sorted(SHIPPED.rglob("*.yaml"))
    return {str(path.relative_to(SHIPPED).with_suffix("")): path for path in found if path.stem != "common"}


def locate(name: str | Path, folder: Path | None = None) -> Path:
    """The config file that `name` means: a path from `folder` (absent: the working directory) if something is there, or
    else a shipped file. Raises ConfigError, naming near ones, if there is none."""
    path = Path(folder or "", os.path.expanduser(name))
    if os.path.exists(path):
        return path
    known, asked = shipped(), str(name).removeprefix("configs/").removesuffix(".yaml")
    if asked in known:
        return known[asked]
    raise ConfigError(f"{path}: no such config file, and none of this name comes with pretrain: {_hint(asked, known)}")


def _hint(asked: str, known: dict[str, Path]) -> str:
    """What may be meant: the same name somewhere else, the same in another folder, or names that are spelled alike."""
    last = asked.rpartition("/")[2]
    inside = [name for name in known if asked.endswith(f"/{name}")]
    alike = [name for name in known if last in name.split("/")]
    near = inside or close_matches(asked, alike or known, _MOST, 0 if alike else 0.6)
    folders = dict.fromkeys(name.partition("/")[0] for name in known)
    return did_you_mean(near, f"name a file, or one of {', '.join(f'{folder}/...' for folder in folders)}")
