"""Conversations in the formats of others, and what is said of rows that a model does not read whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import DataError
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.conversations import read_turns
from data_pipeline.recipes.instructions import Instructions, InstructionsRecipe, InstructionsSamples
from tests.unit.data_pipeline.labelled.conftest import Write

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.name }};{% endfor %}{% for message in messages %}"
    "{% if message.role in ('user', 'assistant') %}{{ message.role }}: {{ message.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
SHAREGPT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]


def _samples(write: Write, folder: Path, rows: list[dict[str, Any]], **settings: Any) -> InstructionsSamples:
    dataset = write(rows, kind="bytes")
    (folder / "template.jinja").write_text(TEMPLATE)
    objective = Instructions(**{"packing": "rows", "chat_template": str(folder / "template.jinja"), **settings})
    recipe = objective.for_rows(rows[0]).recipe(dataset.tokenizer(), 600, decoder_only=True)
    samples = recipe.samples(dataset, "train")
    assert isinstance(samples, InstructionsSamples)
    return samples


def _text(samples: InstructionsSamples, number: int = 0) -> str:
    row = samples.dataset.row("train", number)
    return "".join(piece.text for piece in samples.recipe.reader.pieces(row))


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"messages": TURNS}, {"messages": "messages"}),
        ({"conversations": SHAREGPT}, {"messages": "conversations"}),
        ({"messages": TURNS, "prompt": "a", "prompt_id": "7"}, {"messages": "messages"}),  # as ultrachat has them
        (
            {"instruction": "a", "input": "", "output": "b"},
            {"prompt": "instruction", "input": "input", "response": "output"},
        ),
        ({"prompt": "a", "response": "b", "messages": TURNS}, {}),
        ({"question": "a", "answer": "b"}, {}),
    ],
)
def test_formats_of_rows_are_found(row: dict[str, Any], found: dict[str, str]) -> None:
    assert Instructions().for_rows(row) == Instructions(**found)
    chosen = Instructions(messages="turns")
    assert chosen.for_rows(row) == chosen, "a setting wins"


def test_sharegpt_s_turns_are_those_of_transformers() -> None:
    call = {"name": "weather", "arguments": {"place": "Ulm"}}
    turns = [
        {"from": "system", "value": "s"},
        *SHAREGPT,
        {"from": "function_call", "value": json.dumps(call)},
        {"from": "observation", "value": "rain"},
        {"from": "gpt", "value": "c", "weight": 0},
    ]
    assert read_turns(turns, "conversations") == [
        {"role": "system", "content": "s"},
        *TURNS,
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "content": "rain"},
        {"role": "assistant", "content": "c", "weight": 0},
    ]


def test_formats_give_the_same_samples(write: Write, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"messages": TURNS},
        {"conversations": SHAREGPT},
        {"instruction": "a", "input": "", "output": "b"},
        {"prompt": "a", "response": "b"},
    ]
    assert {_text(_samples(write, tmp_path, [row])) for row in rows} == {"user: a\nassistant: b\n"}
    more = {"instruction": "a", "input": "more", "output": "b"}
    assert _text(_samples(write, tmp_path, [more])) == "user: a\nmore\nassistant: b\n"


def test_alpaca_s_rows_have_its_prompt_without_a_template(write: Write, tmp_path: Path) -> None:
    rows = [{"instruction": "Add.", "input": "1 2", "output": "3"}, {"instruction": "Hi", "output": "Ho"}]
    samples = _samples(write, tmp_path, rows, chat_template=None)
    assert _text(samples) == (
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
        "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n"
        "### Response:3"
    )
    assert _text(samples, 1) == (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nHi\n\n### Response:Ho"
    )
    assert samples.references(1) == ["Ho"]
    blank = _samples(write, tmp_path, [{"instruction": "Hi", "input": " ", "output": "Ho"}], chat_template=None)
    assert "### Input:\n \n\n" in _text(blank), "as Stanford Alpaca's train.py, which asks whether it is empty"


def test_a_row_of_unknown_fields_is_refused_with_the_settings_for_turns(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"its fields are turns: .*objective\.messages=messages"):
        _samples(write, tmp_path, [{"turns": TURNS}])
    with pytest.raises(DataError, match=r"line 1: the field 'input' is not text but 3"):
        _samples(write, tmp_path, [{"instruction": "a", "input": 3, "output": "b"}])


def test_text_that_no_setting_reads_is_named(write: Write, tmp_path: Path) -> None:
    row = {"instruction": "a", "input": "more", "output": "b", "id": 7, "tools": [], "note": {"by": ["me"]}}
    samples = _samples(write, tmp_path, [{**row, "input": ""}, row], prompt="instruction", response="output")
    assert samples.dataset.unread_text(samples.recipe.fields) == ["note", "input"]
    fields = {"instruction", "input", "output", "tools", "chat_template_kwargs"}
    assert _samples(write, tmp_path, [row]).recipe.fields == fields


def test_what_the_template_leaves_out_is_said(write: Write, tmp_path: Path) -> None:
    told = [{"role": "system", "content": "s"}, {**TURNS[0], "name": "Ann"}, {**TURNS[1], "weight": 0}]
    samples = _samples(write, tmp_path, [{"messages": TURNS}, {"messages": [*told, TURNS[0]]}])
    assert samples.notes == (
        "the chat template renders nothing of the turns' key name, the turns' key weight, turns of the role system",
        "1 conversations have turns after the last response, which are left out",
    )
    assert _samples(write, tmp_path, [{"messages": TURNS, "tools": [{"name": "t"}]}]).notes == ()


def test_rows_of_earlier_releases_keep_their_order(write: Write, tmp_path: Path) -> None:
    """Fingerprints that 62e58d60 gives for these rows, which name no variable of the template."""
    rows = [{"prompt": f"p{n}", "response": "r" * n + "s", "turns": TURNS, "id": "x"} for n in range(9)]
    expected: list[tuple[dict[str, Any], str]] = [
        ({"chat_template": None}, "78e82a427fd5e778"),
        ({"messages": "turns"}, "4f9d08867cbd821b"),
    ]
    for settings, fingerprint in expected:
        samples = _samples(write, tmp_path, rows, **settings)
        assert SampleStream([(samples.dataset, 1.0)], samples.recipe, 3).fingerprint[:16] == fingerprint


def test_variables_of_rows_identify_the_order(write: Write, tmp_path: Path) -> None:
    def fingerprint(row: dict[str, Any], **settings: Any) -> tuple[str, str]:
        samples = _samples(write, tmp_path, [{"messages": TURNS, **row}], **settings)
        stream = SampleStream([(samples.dataset, 1.0)], samples.recipe, 0)
        return samples.dataset.identity, stream.fingerprint

    assert isinstance(_samples(write, tmp_path, [{"messages": TURNS}]).recipe, InstructionsRecipe)
    plain = fingerprint({})
    assert fingerprint({}, template_variables={}) == plain
    assert fingerprint({}, template_variables={"tools": [{"name": "t"}]}) != plain
    with pytest.raises(DataError, match="has tool, for which the chat template does not ask; it asks for tools"):
        fingerprint({}, template_variables={"tool": []})
    with pytest.raises(DataError, match="needs a chat template that marks responses"):
        fingerprint({}, loss_on="generation")
    assert fingerprint({}, date="2024-07-26") != plain
    tools = _samples(write, tmp_path, [{"messages": TURNS, "tools": [{"name": "t"}]}])
    assert (tools.annotations, _text(tools)) == (["tools"], "t;user: a\nassistant: b\n")
    assert _samples(write, tmp_path, [{"messages": TURNS, "id": "x"}]).annotations == []
