"""Ranks that wait for each other say for whom, and those that can't meet end in time, with what to do."""

import re
import socket
import time
from pathlib import Path

import pytest

from pretrain.process.local import free_port
from tests.helpers.command import LAUNCHER, Command

SPEAKS_S = 0.3
NOWHERE = "no-such-host.invalid"


def _speak_early() -> None:
    from pretrain.process import deadline

    deadline.FIRST_S = SPEAKS_S


def start(
    rank: int, world: int, port: int, config: Path, *settings: str, host: str = "127.0.0.1", meeting: str = "one"
) -> Command:
    """`pretrain train` as a launcher's rank, on a machine of its own."""
    values = (rank, world, 0, 1, host, port)
    environment = {name: str(value) for name, value in zip(LAUNCHER, values, strict=True)}
    arguments = ("train", config, "train.steps=4", "batch.micro_sequences=2", *settings)
    return Command(*arguments, environment=environment | {"PRETRAIN_MEETING": meeting}, first=_speak_early)


def wait_for(command: Command, words: str) -> None:
    deadline = time.monotonic() + 60
    while words not in command.stderr:
        assert command.poll() is None, command.printed
        assert time.monotonic() < deadline, command.printed
        time.sleep(0.05)


def last(command: Command) -> str:
    return command.stderr.splitlines()[-1]


def test_rank_0_names_who_is_missing_while_it_waits_and_at_the_end(config: Path) -> None:
    port = free_port()
    early = start(2, 4, port, config, "health.rendezvous_timeout_s=60")
    wait_for(early, "waiting to meet rank 0")
    first = start(0, 4, port, config, "health.rendezvous_timeout_s=5")
    assert [rank.wait(90) for rank in (first, early)] == [1, 1], first.printed + early.printed
    assert "pretrain: waiting to meet ranks 1, 3 of 4\n" in first.stderr
    assert "waiting to meet ranks" not in early.stderr, "one of those that are there says so"
    assert "ranks 1, 3 of 4 said nothing within 5 s (health.rendezvous_timeout_s)" in last(first)
    assert "rank 0 was met and is gone" in last(early)


def test_without_rank_0_the_others_say_where_they_wait(config: Path) -> None:
    port = free_port()
    alone = start(1, 2, port, config, "health.rendezvous_timeout_s=3")
    assert alone.wait(60) == 1
    waiting = f"pretrain: rank 1 is waiting to meet rank 0 at 127.0.0.1:{port} (Connection refused)"
    assert alone.stderr.splitlines().count(waiting) >= 2, "now and then"
    assert f"rank 1 has not met rank 0 at 127.0.0.1:{port}" in last(alone)
    assert "within 3 s (health.rendezvous_timeout_s)" in last(alone)


def test_a_rank_that_comes_late_is_met(config: Path) -> None:
    port = free_port()
    late = start(1, 2, port, config)
    wait_for(late, "waiting to meet rank 0")
    first = start(0, 2, port, config)
    assert [first.wait(120), late.wait(120)] == [0, 0], first.printed + late.printed


def test_an_address_that_does_not_resolve_is_said_at_once(config: Path) -> None:
    ranks = [start(rank, 2, free_port(), config, host=NOWHERE) for rank in range(2)]
    assert [rank.wait(60) for rank in ranks] == [1, 1]  # health.rendezvous_timeout_s is 300
    for rank in ranks:
        assert re.fullmatch(rf"pretrain: MASTER_ADDR={NOWHERE} does not resolve on .*\n", rank.stderr), rank.printed


def test_a_port_that_is_taken_is_named(config: Path) -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        first = start(0, 2, port, config)
        assert first.wait(60) == 1
    assert f"127.0.0.1:{port}: another program uses this port: set MASTER_PORT" in last(first)
    assert len(first.stderr.splitlines()) == 1, first.stderr


@pytest.mark.slow
def test_ranks_of_another_start_at_the_same_place_are_no_part_of_this_one(config: Path) -> None:
    port = free_port()
    first = start(0, 2, port, config, meeting="one")
    wait_for(first, "waiting to meet rank 1 of 2")
    stray = start(1, 2, port, config, "optimizer.learning_rate=1", "health.rendezvous_timeout_s=3", meeting="another")
    assert stray.wait(60) == 1
    assert "rank 0 of 2 said nothing" in last(stray)
    second = start(1, 2, port, config, meeting="one")
    assert [first.wait(120), second.wait(120)] == [0, 0], first.printed + second.printed


def test_a_rank_0_that_is_gone_before_all_have_come_is_told(config: Path) -> None:
    port = free_port()
    first, second = (start(rank, 4, port, config) for rank in range(2))
    wait_for(first, "waiting to meet ranks 2-3 of 4")
    first.kill()
    assert second.wait(60) == 1
    assert "rank 0 was met and is gone before all ranks had come" in last(second)
