"""Ranks that were started differently all end with one sentence, in threads on one store."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore

from pretrain.errors import ConfigError, RunError
from pretrain.process import deadline
from pretrain.process.agreement import ERROR, STATUS, RendezvousError, check_ranks_agree, plain
from pretrain.process.deadline import Deadline


def verdicts(statements: list[dict[str, Any]]) -> list[Exception | None]:
    """What `agree` raised on each rank."""
    store = HashStore()

    def one(rank: int) -> Exception | None:
        try:
            check_ranks_agree(store, rank, len(statements), statements[rank], Deadline(20))
        except (ConfigError, RunError) as error:
            return error
        return None

    with ThreadPoolExecutor(len(statements)) as ranks:
        return list(ranks.map(one, range(len(statements))))


def the_one(errors: Iterable[Exception | None], kind: type[Exception] = ConfigError) -> str:
    """The sentence that all ranks ended with."""
    found = list(errors)
    assert all(type(error) is kind for error in found), found
    (sentence,) = {str(error) for error in found}
    return sentence


def test_ranks_that_say_the_same_go_on() -> None:
    assert verdicts([{"rate": 0.1, "layers": [1, 2]}] * 3) == [None] * 3
    assert verdicts([{"rate": 0.1}]) == [None]


def test_the_key_its_values_and_the_ranks_are_named_on_every_rank() -> None:
    said = [{"rate": 0.1, "seed": 1}] * 3 + [{"rate": 0.2, "seed": 1}] * 2 + [{"rate": 0.3, "seed": 1}]
    sentence = the_one(verdicts(said))
    assert "rate is 0.1 on ranks 0-2 and 0.2 on ranks 3-4 and 0.3 on rank 5" in sentence
    assert "seed" not in sentence


def test_a_key_that_some_have_not_is_named() -> None:
    assert "window is 8 on rank 0 and absent on rank 1" in the_one(verdicts([{"window": 8}, {}]))


def test_many_differences_are_counted() -> None:
    sentence = the_one(verdicts([{f"key{n}": n + rank for n in range(9)} for rank in range(2)]))
    assert "key4 is" in sentence
    assert "key5 is" not in sentence
    assert "and 4 more differ" in sentence


def test_a_mistake_of_one_rank_is_told_to_all_and_one_of_all_is_told_as_it_is() -> None:
    wrong = {ERROR: "no such file", STATUS: 2}
    assert the_one(verdicts([{"rate": 1}, wrong, wrong])) == "ranks 1-2 of 3: no such file"
    assert the_one(verdicts([wrong] * 2)) == "no such file"
    assert the_one(verdicts([wrong | {STATUS: 1}] * 2), RunError) == "no such file"


def test_ranks_that_never_come_are_named() -> None:
    store = HashStore()
    with pytest.raises(
        RendezvousError, match=r"ranks 1-2 of 3 said nothing within 0.2 s \(health.rendezvous_timeout_s\)"
    ):
        check_ranks_agree(store, 0, 3, {}, Deadline(0.2))
    with pytest.raises(RendezvousError, match=r"rank 0 of 2 said nothing within 0.2 s"):
        check_ranks_agree(HashStore(), 1, 2, {}, Deadline(0.2))
    one_of_three = HashStore()
    one_of_three.set("first", "")
    with pytest.raises(RendezvousError, match="ranks 0, 2 of 3 said nothing"):
        check_ranks_agree(one_of_three, 1, 3, {}, Deadline(0.2))


def test_who_waits_says_for_whom(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(deadline, "FIRST_S", 0.1)
    for rank, speaks in ((0, True), (1, True), (1, False)):
        with pytest.raises(RendezvousError):
            check_ranks_agree(HashStore(), rank, 4, {}, Deadline(0.5, speaks))
    said = dict.fromkeys(capsys.readouterr().err.splitlines())  # a busy machine says it fewer times
    assert list(said) == ["pretrain: waiting to meet ranks 1-3 of 4", "pretrain: waiting to meet rank 0 of 4"]


def test_a_tree_is_told_by_dotted_keys() -> None:
    assert plain({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {"a.b": 1, "a.c.d": [2], "e": None}
