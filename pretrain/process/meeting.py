"""The place where ranks meet, which the launcher names: rank 0 listens there, and the others wait until it does."""

import random
import socket
import time

from pretrain.process.agreement import RendezvousError
from pretrain.process.deadline import Deadline

_TRIES, _BETWEEN_S = 3, 1.0  # of a name server that is too busy to answer
_KNOCKS_S = 0.25


def check_resolves(host: str) -> None:
    """Raises RendezvousError where the name does not lead to an address."""
    for tried in range(1, _TRIES + 1):
        try:
            socket.getaddrinfo(host, None)
            return
        except (OSError, UnicodeError) as error:
            busy = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
            if busy and tried < _TRIES:
                time.sleep(_BETWEEN_S)
                continue
            reason = error.strerror if isinstance(error, OSError) else "it is no name"
            raise RendezvousError(
                f"MASTER_ADDR={host[:200]} does not resolve on {socket.gethostname()} ({reason}): set it to a name or "
                "an address of rank 0's machine that all machines know"
            ) from None


def await_rank_0(host: str, port: int, rank: int, deadline: Deadline) -> None:
    """Returns once something listens there. Raises RendezvousError where nothing does until `deadline` ends."""
    check_resolves(host)
    while True:
        try:
            with socket.create_connection((host, port), timeout=max(1.0, deadline.next_wait_s)):
                return
        except OSError as error:
            reason = error.strerror or "no answer"
        address = f"{host}:{port}"
        if deadline.expired:
            raise RendezvousError(
                f"rank {rank} has not met rank 0 at {address} (MASTER_ADDR, MASTER_PORT) within {deadline.limit_s:g} s "
                f"(health.rendezvous_timeout_s): {reason}. Look for what rank 0 printed, and start all ranks again"
            )
        deadline.report(lambda: f"rank {rank} is waiting to meet rank 0 at {address} ({reason})")  # noqa: B023
        time.sleep(_KNOCKS_S * (1 + random.random()))  # so that thousands don't knock at once
