"""The chat template that a fine-tuning run takes from the run that it starts from, and keeps."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import DataError
from data_pipeline.recipes.instructions import Instructions, InstructionsRecipe
from data_pipeline.tokenizers.load import load_tokenizer, train_tokenizer
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import open_datasets, recipe_of, resolve
from pretrain.errors import ConfigError
from pretrain.interop.hf import chat
from pretrain.observe.run_dir_writer import RunDirWriter
from pretrain.run_dir.paths import RECORD, RunDir
from tests.helpers.datasets import make_documents
from tests.helpers.small_configs import config as small_config

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
TURNS = [{"role": "user", "content": "a word"}, {"role": "assistant", "content": "a reply"}]
MODEL = {"layers": 1, "hidden": 8, "heads": 1, "sequence_length": 64, "vocabulary_multiple": 128}


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A run with a checkpoint and a chat template, as an import leaves it."""
    run = tmp_path / "start"
    checkpoint = RunDir(run).checkpoint(0)
    checkpoint.mkdir(parents=True)
    train_tokenizer(make_documents(0, 60), "byte_bpe", 300).save(checkpoint / "tokenizer.model")
    (checkpoint / RECORD).write_text(json.dumps({"config": small_config(model=MODEL).model_dump(mode="json")}))
    RunDir(run).chat_template.write_text(TEMPLATE)
    return run


def _config(tmp_path: Path, start: Path, **objective: Any) -> RunConfig:
    rows = tmp_path / "rows"
    rows.mkdir(exist_ok=True)
    for split in ("train", "validation"):
        (rows / f"{split}.jsonl").write_text(json.dumps({"turns": TURNS, "prompt": "a", "response": "b"}) + "\n")
    return RunConfig.model_validate(
        {
            "run": {"dir": str(tmp_path / "tuned"), "start_from": str(start)},
            "train": {"steps": 2},
            "batch": {"sequences": 2, "micro_sequences": 2},
            "model": MODEL,
            "objective": {"name": "instructions", **objective},
            "optimizer": {"learning_rate": 1},
            "data": {"path": str(rows)},
        }
    )


def test_conversations_are_rendered_by_the_template_of_the_start(tmp_path: Path, start: Path) -> None:
    config = resolve(_config(tmp_path, start, messages="turns"))
    (dataset,) = open_datasets(config)
    recipe = recipe_of(config, dataset.tokenizer())
    assert isinstance(recipe, InstructionsRecipe)
    samples = recipe.samples(dataset, "train")  # type: ignore[arg-type]
    reads, first = samples.question(0, 8)  # type: ignore[attr-defined]
    assert dataset.tokenizer().decode([*reads.tolist(), first]) == "user: a word\nassistant: "
    assert resolve(config) == config, "a run that resumes"


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"messages": TURNS}, {"messages": "messages"}),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            {"messages": "conversations"},
        ),
        ({"instruction": "a", "output": "b"}, {"prompt": "instruction", "input": "input", "response": "output"}),
    ],
)
def test_formats_of_others_are_found_and_recorded(
    tmp_path: Path, start: Path, row: dict[str, Any], found: dict[str, str]
) -> None:
    config = _config(tmp_path, start)
    for split in ("train", "validation"):
        (tmp_path / "rows" / f"{split}.jsonl").unlink()
        (tmp_path / "rows" / f"{split}.json").write_text(json.dumps([row]))
    resolved = resolve(config)
    assert isinstance(resolved.objective, Instructions)
    named = {**found, "chat_template": str(RunDir(start).chat_template)}
    assert {key: getattr(resolved.objective, key) for key in named} == named
    assert resolve(resolved) == resolved, "a run that resumes"


def test_names_of_tokens_are_those_of_the_folder_of_the_start(tmp_path: Path, start: Path) -> None:
    run = RunDir(start)
    run.chat_template.write_text(f"{{{{ bos_token }}}}{TEMPLATE}{{{{ pad_token }}}}")
    tokenizer = load_tokenizer(run.checkpoint(0) / "tokenizer.model")
    theirs = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>"}
    turns = {"text": "<s>a\n</s>", "ids": [tokenizer.id_of("<s>"), *tokenizer.encode("a\n"), tokenizer.id_of("</s>")]}
    record: dict[str, Any] = {
        "special_pieces": tokenizer.special_pieces(), "noted": {"names": theirs, "turns": turns}
    }  # fmt: skip
    run.source_model.write_text(json.dumps(record))
    config = resolve(_config(tmp_path, start, messages="turns"))
    assert isinstance(config.objective, Instructions)
    assert config.objective.template_variables == {"bos_token": "<s>", "pad_token": "<pad>"}
    assert resolve(config) == config, "a run that resumes"
    chosen = resolve(_config(tmp_path, start, messages="turns", template_variables={"bos_token": "x"}))
    assert isinstance(chosen.objective, Instructions)
    assert chosen.objective.template_variables == {"bos_token": "x", "pad_token": "<pad>"}
    turns["ids"].append(7)
    run.source_model.write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="import the model again"):
        resolve(_config(tmp_path, start, messages="turns"))
    record["special_pieces"]["<s>"] = 99  # of another tokenizer
    run.source_model.write_text(json.dumps(record))
    other = resolve(_config(tmp_path, start, messages="turns"))
    assert isinstance(other.objective, Instructions)
    assert other.objective.template_variables == {}


def test_a_template_that_the_objective_names_is_taken(tmp_path: Path, start: Path) -> None:
    (tmp_path / "other.jinja").write_text(TEMPLATE.replace(": ", "> "))
    config = resolve(_config(tmp_path, start, messages="turns", chat_template=str(tmp_path / "other.jinja")))
    assert isinstance(config.objective, Instructions)
    assert config.objective.chat_template == str(tmp_path / "other.jinja")


def test_a_prompt_and_its_response_need_no_template(tmp_path: Path, start: Path) -> None:
    config = resolve(_config(tmp_path, start))
    assert isinstance(config.objective, Instructions)
    assert config.objective.chat_template is None


def test_conversations_without_any_template_are_refused(tmp_path: Path, start: Path) -> None:
    RunDir(start).chat_template.unlink()
    with pytest.raises(DataError, match=r"set objective.chat_template to its file"):
        resolve(_config(tmp_path, start, messages="turns"))
    with pytest.raises(ConfigError, match="neither a checkpoint nor a run"):
        resolve(_config(tmp_path, tmp_path / "nowhere", messages="turns"))


def test_the_tuned_run_keeps_its_template_for_exports(tmp_path: Path, start: Path) -> None:
    config = resolve(_config(tmp_path, start, messages="turns"))
    run = RunDir(config.run.dir)
    run.path.mkdir()
    writer = RunDirWriter(run.path, lambda: None, lambda sentence: None)
    writer.begin(config, 0)
    writer.close()
    RunDir(start).chat_template.unlink()
    assert chat.run_template(run.checkpoint(2)) == TEMPLATE
