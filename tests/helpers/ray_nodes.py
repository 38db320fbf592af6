"""A Ray cluster of several node processes on this machine, of one core each, with little memory and much patience."""

import inspect
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

LIMIT_S = 600.0
STORE_BYTES = 80 * 2**20
PATIENCE = {
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "600",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class RayNodes:
    """Nodes are there when it is made. `address` is where a driver finds them."""

    def __init__(self, nodes: int) -> None:
        os.environ.update(PATIENCE)
        from ray.cluster_utils import Cluster

        _wait_long()
        self._cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **_settings()})
        self._others = [self._cluster.add_node(wait=False, **_settings()) for _ in range(nodes - 1)]
        self.address: str = self._cluster.address
        self._cluster.wait_for_nodes(timeout=LIMIT_S)

    def remove(self) -> None:
        """A node that is no head leaves at once, with all that runs there."""
        self._cluster.remove_node(self._others.pop(), allow_graceful=False)

    def workers(self) -> list[int]:
        """Processes that are at a task of a build."""
        return [number for number, line in _processes() if line.startswith(b"ray::_run_on_node")]

    def kill_worker(self, limit_s: float) -> int:
        """One that is at a task; waits for it. Returns its number."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for number in self.workers():
                os.kill(number, signal.SIGKILL)
                return number
            time.sleep(0.02)
        raise AssertionError("no task was begun")

    def close(self) -> None:
        """Ends all processes."""
        self._cluster.shutdown()


def _wait_long() -> None:
    """Ray gives a node 30 s to start, and a helper of it 15 s to say its port, which a busy machine may not have."""
    from ray._private import services

    ask, start = services.get_node, services.start_raylet

    def asked(*arguments: Any) -> Any:
        end = time.monotonic() + LIMIT_S
        while True:
            try:
                return ask(*arguments)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def started(*arguments: Any, **named: Any) -> Any:
        given = inspect.signature(start).bind(*arguments, **named).arguments
        said = Path(given["session_dir"]) / f"dashboard_agent_listen_port_{given['node_id']}"
        said.write_text(str(given["dashboard_agent_listen_port"]))
        return start(*arguments, **named)

    services.get_node, services.start_raylet = asked, started


def _settings() -> dict[str, Any]:
    """Ports are named, so that a node need not wait for its helpers to say theirs."""
    names = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
    return {"num_cpus": 1, "object_store_memory": STORE_BYTES, **dict(zip(names, _free_ports(len(names)), strict=True))}


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def _processes() -> list[tuple[int, bytes]]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append((int(folder.name), (folder / "cmdline").read_bytes()))
        except OSError:  # it has ended
            continue
    return found
