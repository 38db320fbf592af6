"""Chat templates render as transformers does: the same text and the same responses for the same row. Templates have
what released ones have, in a few lines each."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import DataError
from data_pipeline.recipes.chat_template import ChatTemplate
from data_pipeline.recipes.conversation_rows import ConversationRows
from data_pipeline.recipes.instructions import Instructions, InstructionsSamples
from data_pipeline.recipes.unrendered import Unrendered
from data_pipeline.tokenizers.byte import ByteTokenizer
from tests.unit.data_pipeline.labelled.conftest import Write

TOKENIZER = ByteTokenizer()
END = next(piece for piece, index in TOKENIZER.special_pieces().items() if index == TOKENIZER.end_of_text)
DAY = datetime.date(2024, 7, 26)
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": {"b": "Zürich", "a": ["<1>"]}}}
]
CALL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Ulm"}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the weather?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "rain", "name": "weather"},
    {"role": "assistant", "content": "It rains."},
    {"role": "user", "content": "And now?"},
    {"role": "assistant", "content": "Still.", "reasoning": "It was raining."},
]

QWEN = """
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == "assistant" and enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- elif message.reasoning_content is string %}
        {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
    {%- endif %}
    {%- if message.content %}{{- message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
LLAMA = """
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{{- "Today Date: " + date_string + "\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n" }}{%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>' }}
    {%- if message.tool_calls %}
        {{- message.tool_calls[0].function | tojson(sort_keys=true, separators=(",", ":"), ensure_ascii=true) }}
    {%- elif message.content is string %}{{- message.content | trim }}
    {%- else %}{%- for part in message.content %}{{- part.text | trim }}{%- endfor %}
    {%- endif %}
    {{- '|' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""
COMMAND = """{% for document in documents or [] %}{{ document.title }}: {{ document.text }}
{% endfor %}{% for message in messages %}{% if message.role != 'tool' %}{{ message.role }}: {{ message.content }}
{% endif %}{% endfor %}{{ style | default('plain') }}{% if controls %}{{ controls.length }}{% endif %}"""
DATED = "{{ strftime_now('%Y-%m-%d') }}" + QWEN
SMOL = """{% for message in messages %}{{ '<' + message.role + '>\\n' }}{% if message.role == 'assistant' %}\
{% generation %}{{ message.content }}{{ message.tool_calls | tojson if message.tool_calls }}</e>{% endgeneration %}
{% else %}{{ message.content }}</e>
{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>\\n' }}{% endif %}"""
SIMPLE = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tools": (QWEN, {"messages": TALK, "tools": TOOLS}, {}),
    "no tools": (QWEN, {"messages": TALK, "tools": None}, {}),
    "a switch of the config": (QWEN, {"messages": TALK}, {"enable_thinking": False}),
    "a switch of the row": (QWEN, {"messages": TALK, "enable_thinking": False}, {"enable_thinking": True}),
    "TRL's column": (QWEN, {"messages": TALK, "chat_template_kwargs": {"enable_thinking": False}}, {}),
    "JSON with arguments": (LLAMA, {"messages": TALK, "tools": TOOLS}, {}),
    "a date of the row": (LLAMA, {"messages": TALK, "date_string": "1 Jan 1970"}, {}),
    "a name of the config": (LLAMA, {"messages": TALK}, {"bos_token": "<s>"}),
    "parts": (LLAMA, {"messages": [{"role": "user", "content": [{"type": "text", "text": " a "}] * 2}, TALK[4]]}, {}),
    "documents": (COMMAND, {"messages": TALK[:2], "documents": [{"title": "T", "text": "x"}]}, {"style": "odd"}),
    "today": (DATED, {"messages": TALK}, {}),
}


class _Clock(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime.datetime:  # type: ignore[override]
        return datetime.datetime.combine(DAY, datetime.time())


def _template(path: Path, source: str, variables: Any = None, day: datetime.date | None = DAY) -> ChatTemplate:
    path = path / "chat_template.jinja"
    path.write_text(source)
    return ChatTemplate(path, TOKENIZER, variables or {}, day)


def _reader(template: ChatTemplate, marked: bool = False, messages: str = "messages") -> ConversationRows:
    fields: dict[str, Any] = {"prompt": "prompt", "input": None, "response": "response", "messages": messages}
    return ConversationRows(**fields, template=template, marked=marked)


def _theirs(source: str, row: dict[str, Any], variables: dict[str, Any]) -> str:
    """What transformers renders of a row."""
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{key: value for key, value in turn.items() if value is not None} for turn in row["messages"]]
    columns = {name: value for name, value in row.items() if name not in ("messages", "chat_template_kwargs")}
    given = {"bos_token": "", "eos_token": END, **variables, **columns, **row.get("chat_template_kwargs", {})}
    return str(render_jinja_template([messages], chat_template=source, **given)[0][0])


@pytest.mark.parametrize("case", CASES)
def test_rows_are_rendered_as_by_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    source, row, variables = CASES[case]
    template = _template(tmp_path, source, variables)
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", _Clock)
    dialogue = _reader(template)._dialogue(json.loads(json.dumps(row)))
    assert template.render(dialogue.turns, dialogue.variables) == _theirs(source, row, variables)
    if case != "documents":  # of which the style follows the last turn
        pieces = _reader(template).pieces(row)
        assert "".join(piece.text for piece in pieces) == _theirs(source, row, variables)


def test_what_reaches_the_template_of_tools() -> None:
    """The case that the comparison with transformers rests on: nothing of `tools` is lost."""
    assert json.dumps(TOOLS[0], ensure_ascii=False) in _theirs(*CASES["tools"])
    assert "<tools>" not in _theirs(*CASES["no tools"])


def test_marked_responses_are_those_of_transformers(write: Write, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    dataset = write([{"messages": [turn for turn in TALK if turn["role"] != "tool"]}], kind="byte_bpe")
    (tmp_path / "smol.jinja").write_text(SMOL)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(dataset.tokenizer_path), chat_template=SMOL)
    row = dataset.row("train", 0)
    made: Any = theirs.apply_chat_template(row["messages"], return_dict=True, return_assistant_tokens_mask=True)
    objective = Instructions(
        messages="messages", chat_template=str(tmp_path / "smol.jinja"), loss_on="generation", packing="rows"
    )
    recipe = objective.recipe(dataset.tokenizer(), 512, decoder_only=True)
    (conversation,) = recipe.conversations([row])
    assert conversation.ids.tolist() == made["input_ids"]
    assert conversation.counts.tolist() == [bool(one) for one in made["assistant_masks"]]
    samples = recipe.samples(dataset, "train")
    assert isinstance(samples, InstructionsSamples)
    reads, first = samples.question(0, 8)
    opened: Any = theirs.apply_chat_template(row["messages"][:-1], add_generation_prompt=True, return_dict=False)
    assert [*reads.tolist(), first] == opened


@pytest.mark.parametrize(
    ("source", "row", "problem"),
    [
        (DATED, {}, "asks for the date of the day, .* set objective.date"),
        ("{{ style }}" + QWEN, {}, "asks for style, which no field .* set objective.template_variables.style"),
        ("{% for one in styles %}{% endfor %}" + QWEN, {}, "asks for styles"),
        (QWEN + "{{ documents[0].title }}", {}, "can't render the conversation"),
        (QWEN, {"tools": "weather"}, "the field 'tools' is not a list of objects"),
        (QWEN, {"tools": [1]}, "the field 'tools' is not a list of objects"),
        (QWEN, {"chat_template_kwargs": 1}, "the field 'chat_template_kwargs' is not an object"),
        (
            SIMPLE,
            {"messages": [TALK[1], {"role": "assistant", "content": "", "tool_calls": [CALL]}]},
            "only tool_calls",
        ),
        (SIMPLE, {"messages": [TALK[1], {"role": "assistant", "tool_calls": "x"}]}, "are not a list of objects"),
        (QWEN, {"messages": [TALK[1], {"role": "assistant", "content": None}]}, "is not a list of turns"),
        (
            SIMPLE,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, TALK[4]]},
            "the content of the turn 0 has a part of the type 'image_url', and only parts of type text are read",
        ),
        (QWEN, {"tools": [{"name": "</s>"}]}, "the field 'tools' holds '</s>', a special token"),
        (
            QWEN,
            {"messages": [TALK[1], {"role": "assistant", "tool_calls": [{"function": {"name": "</s>"}}]}]},
            "the key 'tool_calls' of the turn 1 holds '</s>'",
        ),
        (QWEN, {"tools": [{"name": "\ud800"}]}, "half of a surrogate pair"),
        ("{{ schema | tojson }}" + QWEN, {}, "asks for schema, which no field"),
        ("{{ {'a': [schema]} | tojson }}" + QWEN, {}, "asks for schema, which no field"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}" + QWEN, {}, "can't render the conversation .*recursion"),
        (SIMPLE, {"messages": [{"role": "user</s>", "content": "a"}, TALK[4]]}, "the role of the turn 0 holds '</s>'"),
        (SIMPLE, {"messages": [{"role": "u\ud800", "content": "a"}, TALK[4]]}, "the role of the turn 0 holds half of"),
        (
            "{{ messages | tojson }}" + SIMPLE,
            {"messages": [{"role": "user", "content": "a", "id": "</s>"}, TALK[4]]},
            "the key 'id' of the turn 0 holds '</s>'",
        ),
        (SIMPLE, {"conversations": [{"from": "narrator", "value": "x"}]}, "from 'narrator', which is none of human"),
        (SIMPLE, {"conversations": [{"from": "function_call", "value": "x"}]}, "is not JSON with a name"),
    ],
)
def test_a_row_that_would_lose_something_is_refused(
    write: Write, tmp_path: Path, source: str, row: dict[str, Any], problem: str
) -> None:
    field = "conversations" if "conversations" in row else "messages"
    dataset = write([{"messages": TALK, **row}], kind="bytes")
    reader = _reader(_template(tmp_path, source, day=None), messages=field)
    assert reader.template is not None
    with pytest.raises(DataError, match=rf"train.jsonl, line 1: .*{problem}"):
        list(reader.read(dataset, "train", Unrendered(reader.template, False)))


@pytest.mark.parametrize(
    "source",
    ["{% if style %}x{% endif %}", "{{ style | default('') }}", "{{ messages[0].style }}", "{{ tools is defined }}"],
)
def test_a_variable_that_is_guarded_needs_no_value(tmp_path: Path, source: str) -> None:
    assert _template(tmp_path, source + SIMPLE).render(TALK[:2]) == _theirs(source + SIMPLE, {"messages": TALK[:2]}, {})


def test_what_no_template_reads_may_hold_special_tokens(tmp_path: Path) -> None:
    dialogue = _reader(_template(tmp_path, SIMPLE))._dialogue(
        {"messages": [{"role": "user", "content": "a", "id": "</s>"}, TALK[4]]}
    )
    assert [what for what, _ in dialogue.texts(_template(tmp_path, SIMPLE))] == [
        "the role of the turn 0",
        "the role of the turn 1",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "{% break %}",
        "{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if x %}" * 2000 + "{% endif %}" * 2000,
    ],
    ids=["outside a loop", "in a response", "deep values", "deep blocks"],
)
def test_a_template_that_is_no_program_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(DataError, match=r"chat_template\.jinja is no Jinja template \(.+\); repair it"):
        _template(tmp_path, source)


THINKS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% if m.thinking and KEPT %}<t>"
    "{% generation %}{{ m.thinking }}{% endgeneration %}</t>{% endif %}{% generation %}{{ m.content }};"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("kept", ["true", "loop.last"])
def test_a_question_holds_nothing_of_the_last_response(tmp_path: Path, kept: str) -> None:
    template = _template(tmp_path, THINKS.replace("KEPT", kept))
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "thinking": "hm"}]
    again = template.marked_question([*turns, *turns])
    assert template.marked_question(turns) == "<user>a<assistant><t>"
    assert again == f"<user>a<assistant>{'<t>hm</t>' if kept == 'true' else ''}b;<user>a<assistant><t>"
    assert _reader(template, marked=True).question({"messages": turns}) == "<user>a<assistant><t>"
    two = [*turns, {"role": "assistant", "content": "c"}]
    assert _reader(_template(tmp_path, SIMPLE)).question({"messages": two}) == "user: a\nassistant: b\n"


def test_a_byte_order_mark_is_text_as_in_transformers(tmp_path: Path) -> None:
    assert _template(tmp_path, "\ufeff" + SIMPLE).render(TALK[:1]) == _theirs(
        "\ufeff" + SIMPLE, {"messages": TALK[:1]}, {}
    )


def test_a_template_without_a_date_keeps_its_own(tmp_path: Path) -> None:
    assert "Today Date: 26 Jul 2024\n" in _template(tmp_path, LLAMA, day=None).render(TALK)
    other = datetime.date(1999, 12, 31)
    assert "Today Date: 31 Dec 1999\n" in _template(tmp_path, LLAMA, day=other).render(TALK)


def test_parts_become_text_for_a_template_that_knows_none(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    printed = "{% for message in messages %}{{ message.content }};{% endfor %}"
    for source, text in ((SIMPLE, "user: ab\n"), (printed, "ab;")):
        reader = _reader(_template(tmp_path, source))
        pieces = reader.pieces({"messages": [{"role": "user", "content": parts}, TALK[4]]})
        assert pieces[0].text == text
