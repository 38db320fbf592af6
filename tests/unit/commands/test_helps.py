"""The helps of all commands: what each says of its exit status, and the words and metavars that they share."""

import re
from pathlib import Path

import pytest

import pretrain.__main__
from docs.make.commands import titles
from pretrain.__main__ import main
from pretrain.commands import data, launch, scale
from pretrain.commands.import_ import GGUF_ARCHITECTURES, hf_model_types
from pretrain.commands.verbs import BELOW, MODULES
from pretrain.interop.gguf import unpack as gguf
from pretrain.interop.hf.registry import BY_MODEL_TYPE, FAMILIES_APART
from pretrain.interop.hf.released import TEXT_TYPES

OF_GROUPS = {"data": data._MODULES, "launch": launch._MODULES, "scale": scale._MODULES}
COMMANDS = [
    *(verb for verb in MODULES if verb != "lm-eval"),  # its options are EleutherAI's
    *(f"{group} {verb}" for group, verbs in OF_GROUPS.items() for verb in verbs),
    *(f"{verb} {word}" for verb, words in BELOW.items() for word in words),
]
RESUME = ("train", "finetune", "data build", "launch local")
"""Commands that end with 75: a signal stops them after they have saved."""
METAVARS = {
    *("N", "X", "N,N,...", "X,X,...", "A,B,...", "FILE", "DIR", "TEXT", "COMMAND", "NAME", "NAME,...", "RUN", "OPTION"),
    *(
        "FEATURES",
        "SIZE",
        "TIME",
        "IMAGE",
        "FROM:TO,...",
        "DEPENDENCY",
        "NAME=VALUE",
        "NAME_OR_FILE",
        "FORMAT DIR",
        "LAYERS",
        "PICTURE",
        "CLAIM:DIR",
        "KIND:N",
    ),
}


def help_of(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as leaving:
        main([*command.split(), "--help"])
    assert leaving.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_helps_share_words_and_metavars(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(command, capsys, monkeypatch)
    assert "exit status: 0 done, 1 failed, 2 bad usage or config" in text
    assert ("75 stopped by a signal" in text) == (command in RESUME)
    assert not re.search(r"folder|Overrides of|JSON lines", text.replace("executor=folder", ""))
    assert all(word.startswith("'") for word in text.split() if "&" in word), "a shell reads & if it is not quoted"
    named = set(re.findall(r"^  --[a-z-]+ ([^\s{\[]+(?: DIR)?)(?:  |$)", text, re.MULTILINE))
    assert named <= METAVARS


def test_every_parser_has_a_section_in_the_reference_and_a_place_in_the_help_of_all() -> None:
    """Parsers are found in the text of the commands, whoever lists them."""
    folder = Path(launch.__file__).parent
    parsers = {
        name for file in folder.glob("*.py") for name in re.findall(r'\bParser\(\s*"([a-z -]+)"', file.read_text())
    }
    assert len(parsers) >= 40
    listed = titles()
    assert {*parsers, *OF_GROUPS, "lm-eval"} == listed.keys()
    assert listed["import"] == "import hf, import gguf, import peft"
    overview = " ".join((pretrain.__main__.__doc__ or "").split())
    words = ", ".join(title for name, title in listed.items() if name not in (*OF_GROUPS, "completion")).split(", ")
    assert [title for title in words if not re.search(rf"\b{title}\b", overview)] == []


def test_import_s_help_names_what_can_be_imported() -> None:
    apart = {family.model_type for family in FAMILIES_APART.values()}
    assert set(hf_model_types()) == {*BY_MODEL_TYPE, *apart, *TEXT_TYPES}
    assert GGUF_ARCHITECTURES == gguf._KNOWN
