"""What a run's samples come from."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.recipes.best_fit import PackedRows
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError

SIZES = {"large": 60, "small": 20}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two datasets of pairs with one tokenizer."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "held.jsonl").write_text('{"source": "ab ba", "target": "ba ab"}\n')
    made: list[Path] = []
    for name, size in SIZES.items():
        lines = [f'{{"source": "ab {n % 7} ba", "target": "{name} {n % 7} ab"}}\n' for n in range(size)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
        tokenizer: dict[str, Any] = {"path": made[0] / "tokenizer.model"} if made else {"vocabulary": 290}
        values = {
            "input": str(folder / f"{name}.jsonl"), "output": folder / name, "pair_fields": ["source", "target"],
            "validation_input": str(folder / "held.jsonl"), "tokenizer": tokenizer,
        }  # fmt: skip
        build(BuildConfig.model_validate(values))
        made.append(folder / name)
    return made


def _shares(tasks: list[Path], mixing: dict[str, Any] | None) -> list[float]:
    from pretrain.data.stream import open_stream

    values = {
        "run": {"dir": "unused"}, "train": {"steps": 1}, "batch": {"sequences": 8}, "optimizer": {"learning_rate": 1},
        "model": {
            "family": "t5", "layers": 1, "hidden": 8, "heads": 1, "sequence_length": 64, "target_length": 64,
            "positions": "relative",
        },
        "objective": {"name": "pairs"},
        "data": {"sources": [{"path": str(path)} for path in tasks], "mixing": mixing},
    }  # fmt: skip
    stream, _ = open_stream(RunConfig.model_validate(values))
    sources = stream.batch(0, 1000).sample_ids[:, 0]
    return (np.bincount(sources, minlength=2) / 1000).tolist()


@pytest.mark.parametrize(
    ("mixing", "large"),
    [
        (None, 0.5),
        ({"name": "equal"}, 0.5),
        ({"name": "proportional"}, 60 / 80),
        ({"name": "proportional", "cap": 30}, 30 / 50),
        ({"name": "temperature", "temperature": 2}, 60**0.5 / (60**0.5 + 20**0.5)),
    ],
)
def test_sources_are_mixed_at_the_rates_of_the_study(
    mixing: dict[str, Any] | None, large: float, tasks: list[Path]
) -> None:
    assert _shares(tasks, mixing)[0] == pytest.approx(large, abs=2e-3)


def test_weights_and_mixing_do_not_go_together() -> None:
    from pydantic import ValidationError

    from pretrain.config.data import Data

    with pytest.raises(ValidationError, match="leave out weight"):
        Data.model_validate({"sources": [{"path": "a", "weight": 2}, {"path": "b"}], "mixing": {"name": "equal"}})


def test_packed_rows_that_hold_little_are_said() -> None:
    from pretrain.training.notes import _padding

    documents: Any = SimpleNamespace(  # 40 of 13 tokens
        address="set", starts=lambda split: np.arange(40) * 13, num_tokens=lambda split: 40 * 13
    )

    def said(length: int) -> tuple[str, ...]:
        stream: Any = SimpleNamespace(datasets=[documents], samples=[PackedRows(documents, "train", length)])
        return _padding(stream)

    assert said(12) == said(24) == said(6) == ()
    assert said(23)[0].startswith("48% of the 40 packed rows of the train split of set is padding")


def test_what_a_model_does_not_read_of_labelled_rows_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from data_pipeline.labelled.dataset import LabelledDataset
    from data_pipeline.recipes.instructions import Instructions
    from data_pipeline.tokenizers.byte import ByteTokenizer
    from pretrain.training import notes

    template = "{% for message in messages %}{{ message.role }}: {{ message.content }};{% endfor %}"
    turns = [{"role": "user", "content": "a", "name": "Ann"}, {"role": "assistant", "content": "b" * 40}]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"messages": turns, "input": "more"}) + "\n")
    (tmp_path / "template.jinja").write_text(template)
    ByteTokenizer().save(tmp_path / "tokenizer")
    dataset = LabelledDataset(tmp_path, tmp_path / "tokenizer")
    objective = Instructions(messages="messages", chat_template=str(tmp_path / "template.jinja"), packing="rows")
    recipe = objective.recipe(dataset.tokenizer(), 32, decoder_only=True)
    stream: Any = SimpleNamespace(datasets=[dataset])
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    said = notes._rows_not_read(stream, recipe)
    train = f"{tmp_path}/train.jsonl"
    assert f"1 of 1 rows of {train} are too long and lose tokens: objective.sequence_length says how many" in said[0]
    assert f"{train}: the chat template renders nothing of the turns' key name" in said
    assert said[-1].startswith(f"{train}: no setting of the objective reads the text of the fields input: ")
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    assert notes._rows_not_read(stream, recipe) == ()


def test_a_run_reads_its_data_from_an_address(tasks: list[Path], tmp_path: Path) -> None:
    from pretrain.data.resolve import resolve
    from pretrain.data.stream import open_stream
    from pretrain.training.notes import _verified_later

    fsspec = pytest.importorskip("fsspec")
    for path in tasks[0].iterdir():
        fsspec.filesystem("memory").pipe_file(f"/bucket/tasks/{path.name}", path.read_bytes())
    address = "memory://bucket/tasks"

    def config(path: object, **data: Any) -> RunConfig:
        values = {
            "run": {"dir": "unused"}, "train": {"steps": 1}, "batch": {"sequences": 8}, "objective": {"name": "pairs"},
            "optimizer": {"learning_rate": 1},
            "data": {"path": str(path), "cache_dir": str(tmp_path / "cache"), **data},
            "model": {
                "family": "t5", "layers": 1, "hidden": 8, "heads": 1, "sequence_length": 64, "target_length": 64,
                "positions": "relative",
            },
        }  # fmt: skip
        return resolve(RunConfig.model_validate(values))

    here, _ = open_stream(config(tasks[0]))
    there, _ = open_stream(config(address, cache_bytes=10**6))
    assert there.batch(0, 16).data_hash == here.batch(0, 16).data_hash
    assert there.cursor(16) == here.cursor(16)
    assert list((tmp_path / "cache").glob("pieces/*/*"))
    notes = _verified_later(config(address), there)
    assert notes == (f"{address} is remote: each part of it is verified when it is fetched, not before the first step",)
    assert _verified_later(config(address, verify=False), there) == ()
    assert _verified_later(config(tasks[0]), here) == ()


def test_a_mix_stands_for_its_datasets_and_their_weights(tmp_path: Path) -> None:
    from pretrain.data.resolve import resolve
    from pretrain.data.stream import open_stream

    for name in ("web", "books"):
        lines = [f"{name} {n} " + "ab ba " * (n % 9) for n in range(60)]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    sources = [{"name": "web", "input": str(tmp_path / "web.txt"), "weight": 3}]
    sources.append({"name": "books", "input": str(tmp_path / "books.txt"), "weight": 1})
    values = {
        "sources": sources, "output": tmp_path / "mix", "txt_documents": "line", "tokenizer": {"vocabulary": 290},
        "validation_fraction": 0.1,
    }  # fmt: skip
    build(BuildConfig.model_validate(values))
    run = {
        "run": {"dir": "unused"}, "train": {"steps": 1}, "batch": {"sequences": 8}, "optimizer": {"learning_rate": 1},
        "data": {"path": str(tmp_path / "mix"), "prefetch": 3},
        "model": {"layers": 1, "hidden": 8, "heads": 1, "sequence_length": 16},
    }  # fmt: skip
    config = resolve(RunConfig.model_validate(run))
    assert [(s.path, s.called, s.weight) for s in config.data.resolved_sources] == [
        (str(tmp_path / "mix" / "web"), "web", 3), (str(tmp_path / "mix" / "books"), "books", 1)
    ]  # fmt: skip
    assert config.data.prefetch == 3
    assert config.model.vocabulary == 290
    stream, _ = open_stream(config)
    assert np.bincount(stream.sample_ids(0, 400)[:, 0]).tolist() == [300, 100]
    assert resolve(config) == config
    mixing = {"name": "power", "alpha": 0.3}
    mixed = resolve(RunConfig.model_validate(run | {"data": {"path": str(tmp_path / "mix"), "mixing": mixing}}))
    stream, recipe = open_stream(mixed)
    web, books = (recipe.samples(dataset, "train").count ** 0.3 for dataset in stream.datasets)
    (of_web, _) = np.bincount(stream.sample_ids(0, 1000)[:, 0])
    assert of_web / 1000 == pytest.approx(web / (web + books), abs=1e-3), "not by the weights of the build"
    assert resolve(mixed) == mixed
    one = {"path": str(tmp_path / "mix" / "web"), "mixing": mixing}
    with pytest.raises(ConfigError, match=r"data\.mixing is between sources, and .*web is one"):
        resolve(RunConfig.model_validate(run | {"data": one}))


@pytest.mark.parametrize(
    ("vocabulary", "tied", "words"),
    [
        (8192, True, None),
        (8200, True, None),  # as rounding up makes anyway
        (50257, True, "42,065 rows of the embedding (2,019,120 parameters) are unused"),
        (50257, False, "(4,038,240 parameters)"),
    ],
)
def test_a_vocabulary_beyond_the_datas_is_told_of(vocabulary: int, tied: bool, words: str | None) -> None:
    from pretrain.training.notes import _unused_embedding_rows
    from tests.helpers.small_configs import config

    model = {"vocabulary": vocabulary, "vocabulary_multiple": 128, "tie_word_embeddings": tied}
    notes = _unused_embedding_rows(config(model=model), SimpleNamespace(vocabulary=8192))  # type: ignore[arg-type]
    if words is None:
        assert notes == ()
    else:
        (note,) = notes
        assert words in note
        assert ": set model.vocabulary=8192, or null to follow the data," in note
