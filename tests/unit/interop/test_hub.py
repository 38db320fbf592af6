"""Models of the hub: `pretrain import hf ORG/NAME`, from a local server that answers as the hub does."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.hub import COMMIT, OLDER, Hub, serve

# As a command does, in a process of its own: the hub's library reads its variables when it is imported.
_FIND = """
import json, sys
from pretrain.interop.hf.hub import find
from pretrain.errors import ConfigError
for name, revision in json.load(sys.stdin):
    try:
        found = find(name, revision)
        print(json.dumps([str(found.path), found.name, found.origin]))
    except ConfigError as error:
        print(json.dumps(str(error)))
"""
Found = list[str | None] | str


def find(root: Path, *asked: tuple[str, str | None], **variables: str) -> list[Found]:
    """(path, name, origin) of each that was asked for, or the sentence that refuses it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    done = subprocess.run(
        [sys.executable, "-c", _FIND],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=root,
        env=environment | {"PYTHONPATH": os.getcwd(), "HF_HOME": str(root / "home")} | variables,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _folder(path: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    return path


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    root = tmp_path_factory.mktemp("hub")
    index = json.dumps({"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}})
    files = {
        "config.json": "{}", "tokenizer.json": "{}", "tokenizer.model": "m", "vocab.txt": "v", "README.md": "r",
        "chat_template.jinja": "t", "model.safetensors.index.json": index, "part-1.safetensors": "1",
        "part-2.safetensors": "2", "consolidated.safetensors": "once more", "pytorch_model.bin": "p",
        "modeling_mine.py": "raise", "original/consolidated.00.pth": "p",
    }  # fmt: skip
    pickled = {"config.json": "{}", "pytorch_model.bin": "p"}
    with serve() as found:
        found.models = {
            "org/model": {
                COMMIT: _folder(root / "new", files),
                OLDER: _folder(root / "old", {"model.safetensors": "w"}),
            },
            "org/gated": {COMMIT: root / "new"},
            "org/pickled": {COMMIT: _folder(root / "pickled", pickled)},
        }
        found.gated = {"org/gated"}
        yield found


def test_a_model_of_the_hub_is_a_folder_of_what_is_no_program(hub: Hub, tmp_path: Path) -> None:
    """The cache answers without the hub, and only with what it has."""
    (tmp_path / "org" / "here").mkdir(parents=True)
    hub.downloaded.clear()
    model, older, here, gated = find(
        tmp_path, ("org/model", None), ("org/model", "v1"), ("org/here", None), ("org/gated", None),
        HF_ENDPOINT=hub.url, HF_TOKEN=hub.token,
    )  # fmt: skip
    snapshots = tmp_path / "home" / "hub" / "models--org--model" / "snapshots"
    assert model == [str(snapshots / COMMIT), "model", f"org/model at {COMMIT}"]
    assert older == [str(snapshots / OLDER), "model", f"org/model at {OLDER}"]
    assert here == ["org/here", "here", None]
    assert isinstance(gated, list)
    names = {path.name for path in (snapshots / COMMIT).iterdir()}
    assert names == {
        "README.md", "config.json", "tokenizer.json", "tokenizer.model", "vocab.txt", "chat_template.jinja",
        "model.safetensors.index.json", "part-1.safetensors", "part-2.safetensors",
    }  # fmt: skip
    again, other = find(
        tmp_path, ("org/model", None), ("org/other", None), HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="1"
    )
    assert again == model
    assert other == (
        f"org/other is no folder here, and the cache {tmp_path}/home/hub does not have all of it, while HF_HUB_OFFLINE "
        "is set: unset it, or give a folder"
    )


def test_what_cannot_be_downloaded_is_said_in_a_sentence(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    asked = {
        ("org/none", None): "org/none is neither a folder here nor a model at",
        ("org/model", "v9"): "org/model has no revision v9 at",
        ("org/gated", None): "org/gated is gated: accept its conditions at",
        ("org/pickled", None): "org/pickled has no model.safetensors at commit",
        ("here", "v1"): "--revision is of names on the hub, and here is a folder",
        ("org/a--b", None): "org/a--b is neither a folder here nor a name on the hub",
    }
    for found, expected in zip(find(tmp_path, *asked, HF_ENDPOINT=hub.url), asked.values(), strict=True):
        assert isinstance(found, str)
        assert found.startswith(expected)
        assert "\n" not in found
    (unreachable,) = find(tmp_path, ("org/model", None), HF_ENDPOINT="http://127.0.0.1:9")
    assert isinstance(unreachable, str)
    assert "while http://127.0.0.1:9 cannot be reached (" in unreachable
    assert "\n" not in unreachable
