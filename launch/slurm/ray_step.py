"""A Ray cluster that lives as long as one command: `srun ... python -m launch.slurm.ray_step COMMAND`.

The step has a task on each node. The first starts the Ray head, runs `pretrain COMMAND`, and stops the head. Every
other task starts a Ray node, which leaves when the head is gone. If a node can't start, the build runs without it.
"""

import os
import signal
import socket
import subprocess
import sys
import time

from pretrain.errors import ConfigError
from pretrain.process.slurm import meeting_address, meeting_port

_START_S, _STOP_S = 600.0, 60.0
_LOOK_S, _LOOKS = 5.0, 3  # seconds between two checks of the head, and failed checks before a node leaves
_STOP_SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


def main(argv: list[str]) -> int:
    """Runs this task of the step. Returns the exit status of the command; 0 for tasks other than the first."""
    try:
        first = meeting_address(os.environ["SLURM_STEP_NODELIST"])
        port = meeting_port(int(os.environ["SLURM_JOB_ID"]), int(os.environ["SLURM_STEP_ID"]))
    except KeyError as missing:
        _say(f"{missing.args[0]} is not set: start this with srun")
        return ConfigError.exit_status
    except ConfigError as error:
        _say(str(error))
        return error.exit_status
    address = (socket.gethostbyname(first), port)
    return _head(address, argv) if os.environ["SLURM_PROCID"] == "0" else _node(address)


def _head(address: tuple[str, int], command: list[str]) -> int:
    host, port = address
    head = _ray("--head", f"--node-ip-address={host}", f"--port={port}", "--include-dashboard=false")
    try:
        if not _answers(address, head):
            _say("the Ray cluster could not be started: see the output of `ray start` above")
            return 1
        environment = {**os.environ, "RAY_ADDRESS": f"{host}:{port}"}
        work = subprocess.Popen([sys.executable, "-m", "pretrain", *command], env=environment)
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda received, _: work.send_signal(received))
        status = work.wait()
        return status if status >= 0 else 128 - status
    finally:
        _stop(head)


def _node(address: tuple[str, int]) -> int:
    for number in _STOP_SIGNALS:
        # The first task gets the signal too, and decides. Ray would inherit SIG_IGN and could then not be stopped.
        signal.signal(number, lambda *_: None)
    if not _answers(address, None):
        _say(f"no Ray cluster answers at {address[0]}:{address[1]}: the build runs without this node")
        return 0
    node, missed = _ray(f"--address={address[0]}:{address[1]}"), 0
    while missed < _LOOKS and node.poll() is None:
        time.sleep(_LOOK_S)
        missed = 0 if _reached(address) else missed + 1
    if not missed:
        _say(f"this Ray node ended with status {node.returncode}: the build runs without it")
    _stop(node)
    return 0


def _ray(*options: str) -> "subprocess.Popen[bytes]":
    cores = len(os.sched_getaffinity(0))
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", *options]
    return subprocess.Popen([*start, f"--num-cpus={cores}", "--disable-usage-stats", "--block"])


def _answers(address: tuple[str, int], starting: "subprocess.Popen[bytes] | None") -> bool:
    """Whether the head answers. Waits for it; on its own node, only while its process is `starting`."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end and (starting is None or starting.poll() is None):
        if _reached(address):
            return True
        time.sleep(1.0)
    return False


def _reached(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=_LOOK_S).close()
    except OSError:
        return False
    return True


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _say(line: str) -> None:
    print(f"launch: {socket.gethostname()}: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
