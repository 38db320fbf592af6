"""A conversation is what its chat template renders, as far as the model has positions for it."""

from pathlib import Path

import pytest

from data_pipeline.recipes.chat_template import ChatTemplate
from data_pipeline.tokenizers.byte import ByteTokenizer
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import DecodeRequest
from pretrain.evaluate.decoding.chat import Chat

TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] + ':' + message.content + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
TOKENIZER = ByteTokenizer()
END = TOKENIZER.special_pieces()["</s>"]


@pytest.fixture
def template(tmp_path: Path) -> ChatTemplate:
    path = tmp_path / "chat_template.jinja"
    path.write_text(TEMPLATE)
    return ChatTemplate(path, TOKENIZER)


def _ids(request: DecodeRequest) -> list[int]:
    return [*request.reads, request.start]


def _rendered(*texts: str) -> list[int]:
    """Ids of texts between which turns end."""
    first, *rest = (TOKENIZER.encode(text) for text in texts)
    return [*first, *(index for text in rest for index in (END, *text))]


def test_a_turn_is_read_after_those_before_it(template: ChatTemplate) -> None:
    chat = Chat(template, TOKENIZER, 128)
    assert _ids(chat.request("hi", 5, "0")) == _rendered("u:hi", "a:")
    chat.answered(" ho\n")
    request = chat.request("and?", None, "1")
    assert _ids(request) == _rendered("u:hi", "a:ho", "u:and?", "a:")
    assert request.longest == 128 - len(request.reads)
    assert END in chat.special


def test_the_oldest_turns_are_left_out_where_an_answer_has_no_room(template: ChatTemplate) -> None:
    chat = Chat(template, TOKENIZER, 40)
    for text in ("one", "two"):
        chat.request(text, 4, text)
        assert chat.num_left_out == 0
        chat.answered("yes")
    assert _ids(chat.request("three", 8, "3")) == _rendered("u:two", "a:yes", "u:three", "a:")
    assert chat.num_left_out == 1
    chat.answered("no")
    with pytest.raises(ConfigError, match="the line is 34 tokens long with its template, which leaves room for 7 of"):
        chat.request("x" * 29, 8, "4")
    assert [turn["content"] for turn in chat.turns] == ["two", "yes", "three", "no"], "as they were"
    assert _ids(chat.request("x" * 28, 8, "5")) == _rendered(f"u:{'x' * 28}", "a:")
    assert chat.num_left_out == 2


def test_what_the_template_cannot_render_is_refused(tmp_path: Path, template: ChatTemplate) -> None:
    chat = Chat(template, TOKENIZER, 40)
    with pytest.raises(ConfigError, match="the line holds '</s>', a special token"):
        chat.request("a</s>", 4, "0")
    (tmp_path / "strict.jinja").write_text("{{ raise_exception('no system turn') }}")
    with pytest.raises(ConfigError, match="no system turn"):
        Chat(ChatTemplate(tmp_path / "strict.jinja", TOKENIZER), TOKENIZER, 40).request("a", 4, "0")
