"""What `pretrain` says of itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.__main__ import main
from pretrain.commands.verbs import MODULES


def test_the_version_is_of_the_package_and_of_what_it_stands_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(
        r"pretrain \d+\.\d+\.\d+ \(torch [\d.]+\S*, megatron-core [\d.]+, deepspeed [\d.]+, Python 3\.\d+\.\d+\)\n",
        capsys.readouterr().out,
    )


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for verb in MODULES:
        assert re.search(rf"^  {verb} ", said, re.MULTILINE), verb


def test_a_verb_that_is_spelled_wrong_is_named_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "pretrain: unknown command 'trian': did you mean train?\n"


def test_help_keys_and_plan_load_no_torch() -> None:
    plan = "['plan', 'gpt3/125m', '--gpus', '8', '--hardware', 'h100']"
    code = f"import sys, pretrain.__main__ as m; done = [m.main(verb) for verb in (['--help'], ['keys'], {plan})]; "
    code += "sys.exit(any(done) or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def _in_a_shell(arguments: str, redirected: str) -> subprocess.CompletedProcess[str]:
    typed = f"{sys.executable} -m pretrain {arguments} {redirected}"
    return subprocess.run(["bash", "-o", "pipefail", "-c", typed], capture_output=True, text=True)


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "1.out").write_text("a line\n" * 100_000)
    for arguments in ("--help", "keys", f"launch logs {tmp_path} --lines 100000"):
        done = _in_a_shell(arguments, "| head -1")
        assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, ""), arguments


@pytest.mark.parametrize("arguments", ["--version", "keys", "plan gpt3/125m --gpus 8 --hardware h100", "keys --help"])
def test_what_cannot_be_printed_is_said_on_stderr_with_status_1(arguments: str) -> None:
    done = _in_a_shell(arguments, "> /dev/full")
    said = "pretrain: standard output cannot be written (No space left on device): what was printed is lost\n"
    assert (done.returncode, done.stderr) == (1, said)
