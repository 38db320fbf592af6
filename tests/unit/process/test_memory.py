"""Running out of memory is a sentence that says at what."""

import os

import pytest
import torch

from pretrain.__main__ import main
from pretrain.commands import train as command
from pretrain.process import memory
from pretrain.process.memory import host_bytes, ran_out
from tests.helpers.import_law import ROOT, modules


def caught(error: BaseException, module: str, function: str) -> BaseException:
    """`error`, as raised in a function of that name and module."""
    raising: dict[str, object] = {"__name__": module, "error": error}
    exec(f"def {function}():\n    raise error", raising)
    try:
        raising[function]()  # type: ignore[operator]
    except BaseException as found:
        return found
    raise AssertionError


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[enforce fail] can't allocate memory: you tried")])
def test_the_part_of_the_run_is_named(error: BaseException) -> None:
    said = ran_out(caught(error, "pretrain.engine.megatron.engine", "train_step"))
    assert said is not None
    assert said.startswith("memory ran out while a training step")
    assert "batch.micro_sequences" in said


def test_torch_says_so_in_words_that_are_known() -> None:
    for shape in ((2**45,), (2**40, 2**40)):
        with pytest.raises(RuntimeError) as refused:
            torch.empty(shape)
        assert ran_out(refused.value) is not None


def test_other_errors_are_not_taken_for_it() -> None:
    assert ran_out(RuntimeError("shapes differ")) is None
    assert ran_out(ValueError("out of memory")) is None


def test_parts_that_are_named_exist() -> None:
    for module, function in memory._PARTS:
        source = (ROOT / modules()[module]).read_text()
        assert f"def {function}(" in source, (module, function)


def test_a_command_ends_with_the_sentence_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhausted(argv: list[str]) -> int:
        raise MemoryError

    monkeypatch.setattr(command, "main", exhausted)
    assert main(["train", "any.yaml"]) == 1
    assert capsys.readouterr().err == "pretrain: memory ran out: use a larger machine, or a smaller run\n"


def test_a_machine_has_its_memory_and_no_more_than_it_may_take() -> None:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 2**28 < host_bytes() <= 2 * physical + 2**36  # and swap
