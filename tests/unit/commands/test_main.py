"""What `pretrain` says of itself."""

import re
import subprocess
import sys

import pytest

from pretrain.__main__ import main
from pretrain.verbs import MODULES


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


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    for arguments in ("--help", "keys"):
        done = subprocess.run(
            f"{sys.executable} -m pretrain {arguments} | head -1", shell=True, capture_output=True, text=True
        )
        assert (done.stdout.count("\n"), done.stderr) == (1, "")
