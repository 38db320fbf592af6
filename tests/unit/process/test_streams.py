"""Standard output and standard error that cannot be written: the work is done, and the status says what was lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = """
import sys
from pathlib import Path
from pretrain.process import streams

streams.guard_streams()
{first}
print("result\\n" * 10_000)  # more than a pipe holds
print("note", file=sys.stderr)
Path({done!r}).write_text("")
sys.exit(streams.last_status({status}))
"""
CLOSED_PIPE, FULL, CLOSED = "| sleep 0", "> /dev/full", ">&-"
LOST = "pretrain: standard output cannot be written ({}): what was printed is lost\n"
NO_SPACE, NOT_OPEN = LOST.format("No space left on device"), LOST.format("Bad file descriptor")


def run(
    directory: Path, redirected: str, first: str = "", status: int = 0, options: str = ""
) -> subprocess.CompletedProcess[str]:
    """COMMAND in a shell that has its streams `redirected`."""
    (directory / "command.py").write_text(COMMAND.format(first=first, done=str(directory / "done"), status=status))
    typed = f"{sys.executable} {options} {directory / 'command.py'} {redirected}"
    found = subprocess.run(["bash", "-o", "pipefail", "-c", typed], capture_output=True, text=True)
    assert (directory / "done").exists(), f"the work was not done: {found.stderr}"
    return found


@pytest.mark.parametrize("options", ["", "-u"])
@pytest.mark.parametrize(
    ("redirected", "status", "said"), [(CLOSED_PIPE, 0, ""), (FULL, 1, NO_SPACE), (CLOSED, 1, NOT_OPEN)]
)
def test_without_standard_output_the_work_is_done(
    redirected: str, status: int, said: str, options: str, tmp_path: Path
) -> None:
    found = run(tmp_path, redirected, options=options)
    assert (found.returncode, found.stderr) == (status, f"note\n{said}")


@pytest.mark.parametrize("redirected", [CLOSED_PIPE, FULL, CLOSED])
def test_a_log_that_is_lost_changes_no_status(redirected: str, tmp_path: Path) -> None:
    found = run(tmp_path, redirected, first="streams.print_a_log()")
    assert (found.returncode, found.stderr) == (0, "note\n")


def test_a_command_that_failed_keeps_its_status(tmp_path: Path) -> None:
    assert run(tmp_path, FULL, status=2).returncode == 2


@pytest.mark.parametrize("redirected", ["2> /dev/full", "2>&-", "2> >(exit)"])
def test_without_standard_error_the_status_and_the_result_stay(redirected: str, tmp_path: Path) -> None:
    found = run(tmp_path, redirected)
    assert (found.returncode, found.stdout) == (0, "result\n" * 10_000 + "\n")


def test_a_file_never_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    first = f"file = open({str(tmp_path / 'file')!r}, 'w'); assert file.fileno() > 2; assert sys.stdin.read() == ''"
    assert run(tmp_path, "<&- >&- 2>&-", first=first).returncode == 1
    assert (tmp_path / "file").read_text() == ""


def test_a_rank_is_started_with_the_streams_of_its_launcher(tmp_path: Path) -> None:
    first = (
        "import subprocess; subprocess.run([sys.executable, '-c', 'import os; os.fstat(0); os.fstat(1)'], check=True)"
    )
    assert run(tmp_path, "<&- >&-", first=first).returncode == 1


def test_characters_that_the_encoding_lacks_are_escaped(tmp_path: Path) -> None:
    found = run(tmp_path, "", first="print('\\u00e9\\udcff'); print('\\u00e9', file=sys.stderr)")
    assert (found.returncode, found.stdout.split("\n")[0]) == (0, "é\\udcff")
    code = "from pretrain.process import streams; streams.guard_streams(); print('\\u00e9')"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("\\xe9\n", "")
