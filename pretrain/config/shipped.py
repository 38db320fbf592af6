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
    paths = sorted(SHIPPED.rglob("*.yaml"))
    return {str(path.relative_to(SHIPPED).with_suffix("")): path for path in paths if path.stem != "common"}


def locate(name: str | Path, folder: Path | None = None) -> Path:
    """The config file that `name` means: a path from `folder` (absent: the working directory) if something is there, or
    else a shipped file. Raises ConfigError, naming near ones, if there is none."""
    path = Path(folder or "", os.path.expanduser(name))
    if os.path.exists(path):
        return path
    paths, shipped_name = shipped(), str(name).removeprefix("configs/").removesuffix(".yaml")
    if shipped_name in paths:
        return paths[shipped_name]
    raise ConfigError(
        f"{path}: no such config file, and pretrain has no config of this name: {_hint(shipped_name, list(paths))}"
    )


def _hint(name: str, names: list[str]) -> str:
    """Hint at the names that may be meant: the same name somewhere else, the same in another folder, names that are
    spelled alike, or those of a family that is spelled alike; else at where all are."""
    family, last = name.partition("/")[0], name.rpartition("/")[2]
    inside = [known for known in names if name.endswith(f"/{known}")]
    alike = [known for known in names if last in known.split("/")]
    near = inside or close_matches(name, alike or names, _MOST, 0 if alike else 0.6)
    if not near:
        families = close_matches(family, dict.fromkeys(known.partition("/")[0] for known in names))
        near = [known for known in names if known.partition("/")[0] in families][:_MOST]
    return did_you_mean(near, f"name a YAML file, or one of the configs in {SHIPPED}")
