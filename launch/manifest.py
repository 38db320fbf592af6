"""Common parts of the descriptions of a run for Kubernetes and SkyPilot: the program of each node, and their YAML."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from pretrain.config.keys import keys
from pretrain.config.load import dump
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError

_MOST_NAME = 52
"""Longest name of a Job, of which the names of its pods (with an index and a suffix) fit in labels of 63 characters."""


@dataclass(frozen=True, kw_only=True)
class NodesRun:
    """A training run on nodes that see `run_dir` under the same path."""

    config: RunConfig
    nodes: int
    ranks: int
    """Ranks per node."""
    restarts: int
    command_line: str
    """The `pretrain launch` command, which the description records."""

    @property
    def run_dir(self) -> str:
        """Raises ConfigError for a path that other machines cannot know."""
        if not PurePosixPath(self.config.run.dir).is_absolute():
            raise ConfigError(
                f"run.dir={self.config.run.dir}: name its absolute path on the nodes, such as /shared/run"
            )
        return self.config.run.dir

    def check_paths(self, mounts: Sequence[str]) -> None:
        """Raises ConfigError for paths that nodes do not have: relative ones, and a run.dir that lies on none of the
        volumes at `mounts`, where several nodes, or the next node, would not find it. One node needs no volume."""
        path = PurePosixPath(self.run_dir)
        if ".." in path.parts:
            raise ConfigError(f"run.dir={path}: name it without ..")
        if (mounts or self.nodes > 1) and not any(path.is_relative_to(mount) for mount in mounts):
            raise ConfigError(f"run.dir={path} is on no volume of the nodes: mount one with --volume CLAIM:DIR")
        if double := sorted({mount for mount in mounts if mounts.count(mount) > 1}):
            raise ConfigError(f"--volume: two volumes cannot be mounted at {double[0]}")
        tree = self.config.model_dump(mode="json")
        names = [key.dotted for key in keys(RunConfig) if key.type == "path" or key.dotted == "evaluate.data"]
        for name in names:
            for value in _values(tree, name.replace("[]", ".[]").split(".")):
                if "://" not in value and not PurePosixPath(value).is_absolute():
                    raise ConfigError(f"{name}={value}: name its absolute path on the nodes, such as /shared/{value}")

    @property
    def name(self) -> str:
        """run.name as Kubernetes and SkyPilot take it: lower-case letters, digits and hyphens. Raises ConfigError."""
        name = re.sub("[^a-z0-9]+", "-", self.config.run.name.lower()).strip("-")[:_MOST_NAME].strip("-")
        if not name or not name[0].isalpha():
            raise ConfigError(f"run.name={self.config.run.name}: name it with a letter first, such as my-run")
        return name

    @property
    def config_text(self) -> str:
        return dump(self.config)

    def program(self, config: str, *, job: str, index: str, address: str) -> list[str]:
        """Words of each node's program, which reads the file `config`."""
        words = ["-m", "launch.nodes.supervise", "--run", self.run_dir, "--job", job, "--index", index]
        words += ["--nodes", str(self.nodes), "--ranks", str(self.ranks), "--address", address]
        return ["python3", *words, "--restarts", str(self.restarts), "--", "train", config]


def _values(tree: Any, names: Sequence[str]) -> Iterator[str]:
    """Texts of a config at a dotted key, whose lists have the name []."""
    if not names:
        yield from [tree] if isinstance(tree, str) else []
    elif names[0] == "[]":
        for one in tree or ():
            yield from _values(one, names[1:])
    elif isinstance(tree, Mapping):
        yield from _values(tree.get(names[0]), names[1:])


def to_yaml(documents: Sequence[Mapping[str, Any]], comment: str) -> str:
    """YAML documents under a comment. Texts are quoted, so that no reader takes one for a number or a truth value."""
    stream = io.StringIO()
    writer = YAML(typ="rt", pure=True)
    writer.width = 4096
    writer.explicit_start = len(documents) > 1
    for document in documents:
        writer.dump(_quoted(document), stream)
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    return lines + stream.getvalue()


def _quoted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _quoted(one) for key, one in value.items()}
    if isinstance(value, str):
        return LiteralScalarString(value) if "\n" in value else DoubleQuotedScalarString(value)
    return [_quoted(one) for one in value] if isinstance(value, list | tuple) else value
