"""The signals that ask a process to stop."""

import signal
import subprocess
import sys
from functools import partial

import pytest


@pytest.mark.parametrize(("before", "asks"), [(signal.SIG_DFL, "True"), (signal.SIG_IGN, "False")])
def test_a_closed_terminal_asks_to_stop_unless_nohup_ignores_it(before: signal.Handlers, asks: str) -> None:
    code = (
        "import signal; from pretrain.process.signals import SIGNALS, StopRequest; stop = StopRequest(); "
        "signal.raise_signal(signal.SIGHUP); print(signal.SIGHUP in SIGNALS, stop.requested)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGHUP, before),
    )
    assert found.stdout == f"{asks} {asks}\n", found.stderr
