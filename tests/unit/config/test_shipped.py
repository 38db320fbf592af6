"""Config files that come with the package are found by name."""

from pathlib import Path

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.config.shipped import SHIPPED, locate, shipped
from pretrain.errors import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_package_has_the_repository_s_files() -> None:
    assert SHIPPED.resolve() == ROOT / "configs"
    names = {str(path.relative_to(ROOT / "configs").with_suffix("")) for path in (ROOT / "configs").rglob("*.yaml")}
    assert set(shipped()) == {name for name in names if not name.endswith("common")}


@pytest.mark.parametrize("name", ["gpt3/125m", "gpt3/125m.yaml", "configs/gpt3/125m.yaml"])
def test_a_name_is_read_with_what_it_extends(name: str) -> None:
    config = load(RunConfig, name, ["run.name=mine"])
    assert (config.model.hidden, config.model.sequence_length, config.run.name) == (768, 2048, "mine")


def test_a_path_that_exists_wins(tmp_path: Path) -> None:
    (tmp_path / "gpt3").mkdir()
    (tmp_path / "gpt3" / "125m.yaml").write_text("{}")
    assert locate("gpt3/125m.yaml") == Path("gpt3/125m.yaml")
    assert locate("gpt3/125m") == SHIPPED / "gpt3" / "125m.yaml"


def test_an_own_file_extends_a_shipped_one_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: gpt3/125m\nmodel: {layers: 2}\n")
    config = load(RunConfig, "mine.yaml")
    assert (config.model.layers, config.model.hidden) == (2, 768)


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mine.yaml").write_text("extends: ~/base.yaml")
    (tmp_path / "home" / "base.yaml").write_text("extends: gpt3/125m")
    assert load(RunConfig, "~/mine.yaml").model.hidden == 768


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("125m", "did you mean gpt3/125m or llama/125m?"),
        ("gpt3/125", "did you mean gpt3/125m"),
        ("gtp3/13b.yaml", "did you mean gpt3/13b or"),
        ("configs/bert/basee.yaml", "did you mean bert/base"),
        ("lama/x", "did you mean llama"),
        ("zzz", "name a YAML file, or one of the configs in "),
        ("gpt3/common", "did you mean"),
        ("../configs/gpt3/125m", "did you mean gpt3/125m?"),
        ("a\0b", "name a YAML file"),
        ("a" * 5000, "name a YAML file"),
    ],
)
def test_a_name_that_is_none_names_near_ones(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        locate(name)
    assert "no such config file" in str(error.value)
    assert hint in str(error.value)
