"""Ends of a text, begin and names that an export says: those of the imported folder, or of the chat template that
answers were trained with."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_pipeline.recipes.chat_template import ChatTemplate
from data_pipeline.recipes.instructions import Instructions
from data_pipeline.recipes.text_labels import Classification
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer
from data_pipeline.tokenizers.recorded import RecordedTokenizer
from pretrain.data.chat_settings import kept
from pretrain.errors import ConfigError, RunError
from pretrain.interop.hf.conventions import Conventions, conventions_of, end_of_turn
from pretrain.interop.hf.source_model import Noted, SourceModel
from pretrain.observe.run_dir_writer import RunDirWriter
from pretrain.run_dir.paths import RECORD, TOKENIZER, RunDir
from tests.helpers.chat_folders import CHATML, byte_level
from tests.helpers.small_configs import config as small_config
from tests.helpers.tiny import tiny_config

NAMES = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END, START, TURN = range(3)
CAUSAL = tiny_config(model={"vocabulary": 400})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_level(NAMES, True).save(str(path))
    return load_tokenizer(path)


@pytest.fixture
def checkpoint(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """The first of a run with a chat template."""
    run = RunDir(tmp_path / "run")
    run.checkpoint(0).mkdir(parents=True)
    tokenizer.save(run.checkpoint(0) / TOKENIZER)
    run.chat_template.write_text(CHATML)
    (run.checkpoint(0) / RECORD).write_text(json.dumps({"config": small_config().model_dump(mode="json")}))
    return run.checkpoint(0)


def _source(ends: int | list[int], **more: Any) -> SourceModel:
    known: dict[str, Any] = {
        "ids": {"bos_token_id": None, "eos_token_id": END, "pad_token_id": END},
        "context": 64,
        "dtype": "bfloat16",
        "generation": {"eos_token_id": ends, "top_k": 20},
        "tokenizer": {"eos_token": NAMES[END], "bos_token": None, "model_max_length": 99},
        "special_tokens_map": None,
        "post_processor": None,
        "templates": {},
        "noted": None,
        "special_pieces": dict(zip(NAMES, range(3), strict=True)),
        "begin_of_text": None,
    }
    return SourceModel(**(known | more))


def _of(checkpoint: Path, tokenizer: Tokenizer, source: SourceModel | None, objective: Any = None) -> Conventions:
    path = RunDir(checkpoint.parents[1]).source_model
    path.unlink(missing_ok=True)
    if source is not None:
        path.write_text(source.text())
    return conventions_of(checkpoint, objective or CAUSAL.objective, tokenizer, False)


@pytest.mark.parametrize(
    ("source", "ends"),
    [
        (None, (TURN, END)),
        (_source(END), None),
        (_source(END, answers_by_template=True), (TURN, END)),
        (_source([TURN, END], answers_by_template=True), None),
        (_source(END, answers_by_template=True, special_pieces={"<s>": 1}), (TURN, END)),
    ],
    ids=["born here", "base", "tuned base", "tuned instruct model", "another tokenizer"],
)
def test_answers_end_with_the_template_s_end_of_turn(
    checkpoint: Path, tokenizer: Tokenizer, source: SourceModel | None, ends: tuple[int, ...] | None
) -> None:
    found = _of(checkpoint, tokenizer, source)
    assert found.ends == ends
    own = {"tokenizer_class": "C", "eos_token": NAMES[END], "bos_token": NAMES[END], "split_special_tokens": True}
    written = found.tokenizer_config(own, tokenizer, CAUSAL.model)
    assert written["eos_token"] == NAMES[END if ends is None else TURN]
    assert not written.get("split_special_tokens"), "a turn's begin and end would be letters"
    assert written.get("bos_token") is None, "no begin that was none"
    described: Any = SimpleNamespace(eos_token_id=END)
    found.set_ids(described)
    assert described.eos_token_id == (END if ends is None else list(ends))


PERSONA = CHATML.replace("You are a helpful assistant.", "' + persona + '")
THINKS = CHATML.replace("{{- '<|im_start|>assistant", "{{- '<|im_start|>assistant<think>")
OF_SYSTEM = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML


@pytest.mark.parametrize(
    ("template", "settings"),
    [
        (PERSONA, {"template_variables": {"persona": "You are Bob."}}),
        (PERSONA.replace("persona", "strftime_now('%d')"), {"date": date(2024, 7, 26)}),
        (THINKS, {"loss_on": "generation"}),
        (OF_SYSTEM, {}),
    ],
    ids=["a variable", "the date", "a prompt that opens what it does not repeat", "a system turn"],
)
def test_the_end_of_turn_is_found_as_the_run_s_own_settings_render_it(
    template: str, settings: dict[str, Any], checkpoint: Path, tokenizer: Tokenizer
) -> None:
    assert template != CHATML
    path = RunDir(checkpoint.parents[1]).chat_template
    path.write_text(template)
    objective = Instructions(chat_template=str(path), messages="messages", **settings)
    assert _of(checkpoint, tokenizer, None, objective).ends == (TURN, END)
    # A run of plain text that starts from it keeps what the template asks for.
    if (content := kept(objective)) is not None:
        RunDir(checkpoint.parents[1]).chat_settings.write_bytes(content)
    found = _of(checkpoint, tokenizer, None)
    assert (found.ends, found.turns) == ((TURN, END), _of(checkpoint, tokenizer, None, objective).turns)


def test_a_template_that_renders_no_answer_exports_nothing(checkpoint: Path, tokenizer: Tokenizer) -> None:
    """It would have no end of turn, and a model of it would never stop."""
    RunDir(checkpoint.parents[1]).chat_template.write_text("{{ raise_exception('never') }}" + CHATML)
    with pytest.raises(RunError, match=r"not exported: what ends an answer is unknown, as the chat template .*never"):
        _of(checkpoint, tokenizer, None)


def test_the_last_of_several_pieces_behind_an_answer_ends_it(tmp_path: Path) -> None:
    names = [*NAMES, "<|END_RESPONSE|>"]
    byte_level(names, True).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "template").write_text(CHATML.replace("'<|im_end|>'", "'<|END_RESPONSE|><|im_end|>'"))
    assert end_of_turn(ChatTemplate(tmp_path / "template", tokenizer)) == TURN


def test_what_the_source_says_of_sampling_and_lengths_is_kept(checkpoint: Path, tokenizer: Tokenizer) -> None:
    found = _of(checkpoint, tokenizer, _source(END, answers_by_template=True, context=CAUSAL.model.sequence_length))
    hf_model: Any = SimpleNamespace(can_generate=lambda: True, config=SimpleNamespace(is_encoder_decoder=False))
    found.write_generation_config(hf_model, checkpoint)
    written = json.loads((checkpoint / "generation_config.json").read_text())
    assert written == {"eos_token_id": [TURN, END], "top_k": 20}
    own = {"tokenizer_class": "C", "split_special_tokens": True, "model_max_length": 16}
    assert found.tokenizer_config(own, tokenizer, CAUSAL.model)["model_max_length"] == 99
    longer = CAUSAL.model.model_copy(update={"sequence_length": 48})
    assert found.tokenizer_config(own, tokenizer, longer)["model_max_length"] == 48


def test_without_a_template_text_that_spells_a_special_token_stays_text(checkpoint: Path, tokenizer: Tokenizer) -> None:
    own = {"tokenizer_class": "C", "split_special_tokens": True, "bos_token": NAMES[END]}
    tuned = _of(checkpoint, tokenizer, None, Classification(labels=["a", "b"]))
    assert tuned.tokenizer_config(own, tokenizer, CAUSAL.model) == own, "nobody sends turns to a classifier"
    RunDir(checkpoint.parents[1]).chat_template.unlink()
    assert _of(checkpoint, tokenizer, None).tokenizer_config(own, tokenizer, CAUSAL.model) == own


@pytest.fixture(scope="module")
def exported(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tokenizer of a run that was born here and has a chat template."""
    from pretrain.interop.hf import chat
    from pretrain.interop.hf.registry import hf_family_of
    from pretrain.interop.hf.tokenizer import write

    folder = tmp_path_factory.mktemp("exported")
    checkpoint = RunDir(folder / "run").checkpoint(0)
    checkpoint.mkdir(parents=True)
    RunDir(folder / "run").chat_template.write_text(CHATML)
    found = conventions_of(checkpoint, CAUSAL.objective, tokenizer, False)
    described = hf_family_of(CAUSAL.model).hf_config(CAUSAL.model, CAUSAL.objective.specials(tokenizer))
    described.save_pretrained(folder)
    chat.write(folder, CHATML, {})
    write(tokenizer, CAUSAL.objective, CAUSAL.model, folder, found)
    return folder


def test_turns_of_an_export_are_those_of_the_run_s_samples(exported: Path, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(exported)
    found = conventions_of(RunDir(exported / "run").checkpoint(0), CAUSAL.objective, tokenizer, False)
    assert found.turns[0].ids.count(TURN) == 4
    found.check_turns(theirs)
    theirs.split_special_tokens = True
    with pytest.raises(RunError, match="of a conversation, which is"):
        found.check_turns(theirs)
    theirs.split_special_tokens, theirs.chat_template = False, CHATML.replace("helpful", "useful")
    with pytest.raises(RunError, match="renders the end of a conversation"):
        found.check_turns(theirs)
    other = replace(found.turns[0], ids=[*found.turns[0].ids, END])
    with pytest.raises(RunError, match="of a conversation, which is"):
        replace(found, turns=(other, *found.turns)).check_turns(theirs)


def test_a_run_that_starts_from_it_keeps_what_exports_say(checkpoint: Path, tmp_path: Path) -> None:
    start = RunDir(checkpoint.parents[1])
    start.source_model.write_text(_source(END).text())
    run = RunDir(tmp_path / "next")
    start.chat_settings.write_text('{"template_variables": {"a": 1}}')
    for objective, answers in ((None, False), (Instructions(chat_template=str(start.chat_template)), True)):
        config = small_config(run={"dir": str(run.path), "start_from": str(start.path)})
        config = config if objective is None else config.model_copy(update={"objective": objective})
        run.path.mkdir(exist_ok=True)
        run.chat_settings.unlink(missing_ok=True)
        writer = RunDirWriter(run.path, lambda: None, lambda sentence: None)
        writer.begin(config, 0)
        writer.close()
        assert run.chat_template.read_text() == CHATML
        assert run.chat_settings.is_file() != answers, "an objective of conversations has settings of its own"
        record = json.loads(run.source_model.read_text())
        assert record == json.loads(_source(END).text()) | {"answers_by_template": answers}
    start.path.rename(tmp_path / "gone")
    resumed = small_config(run={"dir": str(run.path), "start_from": str(start.path)})
    writer = RunDirWriter(run.path, lambda: None, lambda sentence: None)
    writer.begin(resumed, 1)
    writer.close()
    assert json.loads(run.source_model.read_text())["answers_by_template"] is True


def test_a_response_without_a_template_ends_with_the_end_of_text(checkpoint: Path, tokenizer: Tokenizer) -> None:
    assert _of(checkpoint, tokenizer, _source(TURN), Instructions()).ends == (END, TURN)
    assert _of(checkpoint, tokenizer, _source([TURN, END]), Instructions()).ends is None
    assert _of(checkpoint, tokenizer, _source(TURN)).ends is None, "of a model that is trained on plain text"


def test_a_source_that_names_nothing_gains_no_names(checkpoint: Path, tokenizer: Tokenizer) -> None:
    noted = Noted(size=300, names={"eos_token": NAMES[TURN]}, before=[], after=[], turns=None)
    source = _source(TURN, tokenizer={}, noted=noted, context=CAUSAL.model.sequence_length)
    found = _of(checkpoint, tokenizer, source)
    own = {"tokenizer_class": "C", "eos_token": NAMES[END], "bos_token": NAMES[END], "split_special_tokens": True}
    written = found.tokenizer_config(own, tokenizer, CAUSAL.model)
    assert written == {"tokenizer_class": "C", "eos_token": NAMES[TURN]}


@pytest.mark.parametrize(("begin", "before"), [(START, []), (None, [START])])
def test_a_begin_that_a_user_gave_goes_out(
    checkpoint: Path, tokenizer: Tokenizer, begin: int | None, before: list[int]
) -> None:
    """The folder's own is another one."""
    given = RecordedTokenizer(tokenizer, b"{}", None if begin is None else NAMES[begin], NAMES[END])
    noted = Noted(size=300, names={}, before=before, after=[], turns=None)
    source = _source(END, noted=noted)
    assert _of(checkpoint, given, source.of(given)).around(given) == (before, [])
    found = _of(checkpoint, given, source.of(given, is_begin_given=True))
    assert found.around(given) == ([] if begin is None else [begin], [])
    written = found.tokenizer_config({"tokenizer_class": "C"}, given, CAUSAL.model)
    assert written["add_bos_token"] is (begin is not None)
    assert written.get("bos_token") == (None if begin is None else NAMES[begin])


def test_a_damaged_record_of_the_source_is_named(checkpoint: Path, tokenizer: Tokenizer) -> None:
    RunDir(checkpoint.parents[1]).source_model.write_text('{"ids": {}}')
    with pytest.raises(ConfigError, match=r"source_model\.json is damaged"):
        conventions_of(checkpoint, CAUSAL.objective, tokenizer, False)
