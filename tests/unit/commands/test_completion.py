"""The completion scripts, in a real bash."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pretrain.__main__ import main
from pretrain.commands.verbs import MODULES

BASH = shutil.which("bash")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("pretrain.commands.completion.print_lines", printed.extend)
        assert main(["completion", "bash"]) == 0
    path = tmp_path_factory.mktemp("completion") / "pretrain.bash"
    path.write_text("\n".join(printed) + "\n")
    return path


def completed(script: Path, line: str, breaks: str = " \t\n\"'><=;|&(:") -> list[str]:
    """What bash offers after `line`."""
    asked = (
        'source "$1"; COMP_LINE=$2; COMP_POINT=${#2}; COMP_WORDBREAKS=$3; _pretrain; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [str(BASH), "--norc", "-c", asked, "bash", str(script), line, breaks], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()


def test_verbs_and_verbs_of_verbs(script: Path) -> None:
    assert completed(script, "pretrain ") == list(MODULES)
    assert completed(script, "pretrain tr") == ["train", "translate"]
    assert completed(script, "pretrain data ") == ["build", "inspect", "report", "ledger", "trace", "units"]
    assert completed(script, "pretrain completion z") == ["zsh"]
    assert "fetch" in completed(script, "pretrain eval f")
    assert {"attention", "calibrate", "data"} < set(completed(script, "pretrain plan "))


def test_options_and_their_choices(script: Path) -> None:
    assert completed(script, "pretrain rehearse gpt3/125m --gpus") == ["--gpus", "--gpus-per-node"]
    assert completed(script, "pretrain rehearse gpt3/125m --what ") == ["train", "score", "generate"]
    assert completed(script, "pretrain data trace --t") == ["--text"]
    assert completed(script, "pretrain plan data --r") == ["--rates"]
    assert completed(script, "pretrain plan attention gpt3/125m --") == ["--help", "--png"]
    assert completed(script, "pretrain plan calibrate runs/a --th") == ["--threads"]
    assert completed(script, "pretrain train gpt3/125m --nproc ") == []


def test_names_of_configs(script: Path) -> None:
    assert {"gpt3/125m", "gpt3/175b"} <= set(completed(script, "pretrain train gpt3/"))
    assert completed(script, "pretrain train olmoe/1b") == ["olmoe/1b-7b"]
    assert "data/text" in completed(script, "pretrain data build da")
    assert not [one for one in completed(script, "pretrain train gpt3/125m ") if "/" in one]  # one is given


def test_keys_by_section_and_values(script: Path) -> None:
    after = "pretrain train gpt3/125m data.path=a/b "
    assert "optimizer." in completed(script, after)
    assert "precision=" in completed(script, f"{after}pre")
    assert completed(script, f"{after}parallel.ze") == ["parallel.zero=", "parallel.zero_engine="]
    assert completed(script, f"{after}parallel.zero=") == ["0", "1", "2", "3"]
    assert completed(script, f"{after}precision=b") == ["bf16"]
    assert completed(script, f"{after}precision=b", breaks=" ") == ["precision=bf16"]
    assert completed(script, f"{after}run.deterministic=") == ["true", "false"]
    assert "tokenizer.type=" in completed(script, "pretrain data build data/text tokenizer.t")
    assert completed(script, "pretrain compare runs/a runs/b opt") == []  # takes no keys


def test_a_person_at_a_terminal(script: Path) -> None:
    """An interactive bash to which keys are typed."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(str(BASH), ["bash", "--norc", "--noprofile", "-i"], {**os.environ, "TERM": "dumb", "PS1": "$ "})
    try:
        os.write(terminal, f'source "{script}"\n'.encode())
        os.write(terminal, b"echo ready $((40 + 2))\n")
        _until(terminal, b"ready 42")
        os.write(terminal, b"pretrain rehea\tgpt3/17\toptimizer.adamw_l\t")
        seen = _until(terminal, b"adamw_learning_rate=")
        assert re.search(rb"pretrain rehearse gpt3/175b optimizer\.adamw_learning_rate=", seen), seen
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)


def _until(terminal: int, expected: bytes) -> bytes:
    seen, deadline = b"", time.monotonic() + 30
    while expected not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536)
    return seen


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_same_words(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for word in ("rehearse", "ledger", "gpt3/175b", "optimizer.learning_rate", "data/text", "bf16", "nproc"):
        assert word in text, word
    if (program := shutil.which(shell)) is not None:
        (tmp_path / "script").write_text(text)
        subprocess.run([program, "-n", str(tmp_path / "script")], check=True)
    if shell == "fish" and program is not None:
        asked = f"source {tmp_path / 'script'}; complete -C 'pretrain rehearse gpt3/125m precision=b'"
        done = subprocess.run([program, "-c", asked], capture_output=True, text=True, check=True)
        assert "precision=bf16" in done.stdout.split()
