"""Hosts of their own on this machine: network namespaces joined by a bridge, each with a host name and an /etc/hosts.

    with Network(2) as network:                            # h0 and h1, and this machine at network.address
        with Slurm(hosts=network.hosts, controller=network.address) as slurm:
            network.cut("h1")                              # its cable is out
            network.mend("h1")

Needs root, and `ip`, `nsenter` and `unshare` (packages iproute2 and util-linux).
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.helpers.slurm_config import Host

_PORT = 6818  # of each node's daemon: each has an address of its own


def missing() -> str | None:
    """Why there can be no such hosts here; None if there can."""
    absent = [program for program in ("ip", "nsenter", "unshare") if shutil.which(program) is None]
    if absent or os.geteuid():
        return f"hosts of their own need root and {', '.join(absent) or 'its rights'}"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


class Network:
    """Made by `with`, and taken away at its end."""

    def __init__(self, hosts: int) -> None:
        self._id = f"{os.getpid() % 100_000:x}"  # interfaces and namespaces are of the whole machine
        self._subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() % 250}"
        self.address = f"{self._subnet}.1"
        self._directory = Path(tempfile.mkdtemp(prefix="hosts-", dir="/tmp"))
        self.hosts = [
            Host(name, name, f"{self._subnet}.{10 + number}", _PORT, self._enter(name))
            for number, name in enumerate(f"h{number}" for number in range(hosts))
        ]

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._take_away()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._take_away()

    def cut(self, host: str) -> None:
        """Nothing comes from it or reaches it any more; processes in it continue and see only each other."""
        _ip("link", "set", self._cable(host), "down")

    def mend(self, host: str) -> None:
        _ip("link", "set", self._cable(host), "up")

    def _make(self) -> None:
        bridge = f"br{self._id}"
        _ip("link", "add", bridge, "type", "bridge")
        _ip("address", "add", f"{self.address}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        names = [f"{host.address} {host.name}" for host in self.hosts]
        for host in self.hosts:
            space = self._space(host.name)
            own = ["127.0.0.1 localhost", *names, f"{self.address} {os.uname().nodename}"]
            (self._directory / host.name).write_text("\n".join(own) + "\n")
            _ip("netns", "add", space)
            _ip("link", "add", self._cable(host.name), "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", self._cable(host.name), "master", bridge, "up")
            _ip("-n", space, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def _enter(self, name: str) -> tuple[str, ...]:
        """What a command is preceded by to run on a host. (`ip netns exec` would mount another /sys.)"""
        become = f'hostname {name} && mount --bind {self._directory / name} /etc/hosts && exec "$@"'
        space = f"--net=/run/netns/{self._space(name)}"
        return ("nsenter", space, "unshare", "--uts", "--mount", "sh", "-c", become, "sh")

    def _space(self, name: str) -> str:
        return f"{name}-{self._id}"

    def _cable(self, name: str) -> str:
        return f"{name}v{self._id}"

    def _take_away(self) -> None:
        for host in self.hosts:
            for words in (("link", "delete", self._cable(host.name)), ("netns", "delete", self._space(host.name))):
                subprocess.run(["ip", *words], capture_output=True)
        subprocess.run(["ip", "link", "delete", f"br{self._id}"], capture_output=True)
        shutil.rmtree(self._directory, ignore_errors=True)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
