"""What is typed after a verb: read as it was meant, or refused in one sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pretrain.__main__ import main
from pretrain.commands import eval as evaluate
from pretrain.commands import generate
from pretrain.commands.arguments import Parser, count, numbers, utf8
from pretrain.errors import ConfigError


def parser() -> Parser:
    made = Parser("try", "Tries.", ("a.yaml --out there",))
    made.add_config()
    made.add_argument("--out", type=Path, help="where")
    made.add_argument("--shots", type=numbers, help="how many")
    made.add_argument("--limit", type=count, help="at most")
    made.add_argument("--like", choices=["a", "b"], help="which")
    made.add_argument("--prompt", type=utf8, help="text")
    made.add_nproc("ranks")
    return made


def refusal(*argv: str) -> str:
    with pytest.raises(ConfigError) as error:
        parser().parse(list(argv))
    return str(error.value)


def test_overrides_stand_anywhere_between_options() -> None:
    options = parser().parse(["a.yaml", "x=1", "--nproc", "2", "y=2", "--shots=0,8", "z=3"])
    assert (options.config, options.overrides, options.nproc, options.shots) == (
        "a.yaml",
        ["x=1", "y=2", "z=3"],
        2,
        [0, 8],
    )
    assert parser().parse(["a.yaml"]).overrides == []


def test_bytes_that_are_no_text_are_refused_where_text_is_meant() -> None:
    assert parser().parse(["a.yaml", "--prompt", "né"]).prompt == "né"
    typed = b"a\xffb".decode(errors="surrogateescape")  # as Python has it in sys.argv
    assert "--prompt: 'a\\udcffb' is not text in UTF-8" in refusal("a.yaml", "--prompt", typed)


def test_a_path_may_begin_with_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert parser().parse(["a.yaml", "--out=~/there"]).out == Path("/home/somebody/there")
    checkpoint = Parser("try", "Tries.")
    checkpoint.add_checkpoint()
    assert checkpoint.parse(["~/run"]).checkpoint == Path("/home/somebody/run")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["a.yaml", "--npro", "4"], "try knows no --npro: did you mean --nproc?"),
        (["a.yaml", "--npro=4"], "try knows no --npro: did you mean --nproc?"),
        (["a.yaml", "--zzz"], "try knows no --zzz: see `pretrain try --help`"),
        (["a.yaml", "--nproc", "0"], "try: --nproc: '0' must be an integer of at least 1"),
        (["a.yaml", "--nproc=-2"], "try: --nproc: '-2' must be an integer of at least 1"),
        (["a.yaml", "--limit", "many"], "try: --limit: 'many' must be an integer of at least 1"),
        (["a.yaml", "--shots", "1,x"], "try: --shots: '1,x' is not numbers separated by commas, such as 0,1,8"),
        (["a.yaml", "--like", "c"], "try: --like: invalid choice: 'c' (choose from 'a', 'b')"),
        (["a.yaml", "--out"], "try: --out: expected one argument"),
        ([], "try: the following arguments are required: CONFIG; see `pretrain try --help`"),
        (["a.b=c"], "try: CONFIG is missing: a.b=c is an override, and follows it; see `pretrain try --help`"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(argv: list[str], said: str) -> None:
    assert refusal(*argv).startswith(said)
    assert "\n" not in refusal(*argv)


def test_help_names_values_and_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        parser().parse(["--help"])
    assert leaving.value.code == 0
    said = capsys.readouterr().out
    for part in ("CONFIG [key=value ...]", "--out FILE", "--shots N,N,...", "  pretrain try a.yaml --out there\n"):
        assert part in said
    assert "exit status: 0 done, 1 failed, 2 bad usage or config" in said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "data: the following arguments are required: verb; see `pretrain data --help`"),
        (
            ["biuld"],
            "data: verb: invalid choice: 'biuld' (choose from 'build', 'inspect', 'report', 'ledger', 'trace'",
        ),
        (["build"], "data build: the following arguments are required: CONFIG; see `pretrain data build --help`"),
        (["build", "data/text", "--output=there"], "data build knows no --output: see `pretrain data build --help`"),
        (["inspect"], "data inspect: the following arguments are required: DIR_OR_ADDRESS; see `pretrain data inspect"),
        (["inspect", "a", "b"], "data inspect knows no b: see `pretrain data inspect --help`"),
    ],
)
def test_data_refuses_in_one_sentence(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *argv]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"pretrain: {said}")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("verb", ["build", "inspect", "ledger", "trace", "units"])
def test_data_s_help_shows_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], [verb]):
        with pytest.raises(SystemExit) as leaving:
            main(["data", *argv, "--help"])
        assert leaving.value.code == 0
        assert f"\nexamples:\n  pretrain data {verb if argv else 'build'} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "words"), [(generate._parser, ["run"]), (evaluate._parser, ["run", "--tasks", "heldout", "--out", "x"])]
)
def test_a_seed_is_not_negative(make: Callable[[], Parser], words: list[str]) -> None:
    assert make().parse([*words, "--seed", "3"]).seed == 3
    with pytest.raises(ConfigError, match="--seed: '-1' must be an integer of at least 0"):
        make().parse([*words, "--seed", "-1"])
