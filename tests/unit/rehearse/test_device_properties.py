"""Answers of a rehearsal's device that has no values: its properties, and the even shares of experts."""

from typing import Any

import pytest
import torch

from pretrain.plan.device import find_device
from pretrain.rehearse.patches import cuda, tensor_values


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Attributes that torch.cuda would get."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(cuda, "set_attributes", lambda owner, **attributes: found.update(attributes))
    return found


class _Recorder:
    def __init__(self) -> None:
        self.waiting: set[Any] = set()


@pytest.mark.parametrize(
    ("name", "capability", "grouped"),
    [
        ("v100", (7, 0), False),
        ("a100-80", (8, 0), False),
        ("l40s", (8, 9), False),
        ("h100", (9, 0), True),
        ("b200", (10, 0), True),
    ],
)
def test_a_device_has_the_memory_and_the_capability_of_its_file(
    name: str, capability: tuple[int, int], grouped: bool, answers: dict[str, Any]
) -> None:
    """Where torch has no grouped product, the host waits for the numbers of rows."""
    device, recorder = find_device(name), _Recorder()
    cuda._replace_device(device, recorder)  # type: ignore[arg-type]
    properties = answers["get_device_properties"]()
    assert properties.total_memory == int(device.memory_gib * 1024**3)
    assert (properties.name, properties.multi_processor_count) == (device.driver, device.processors)
    assert (properties.major, properties.minor) == answers["get_device_capability"]() == capability
    assert answers["device_count"]() == device.devices
    assert recorder.waiting == (set() if grouped else {torch.ops.aten._grouped_mm.default})


@pytest.mark.parametrize(("rows", "shares"), [(7, [3, 2, 2]), (8, [3, 3, 2]), (9, [3, 3, 3]), (2, [1, 1, 0])])
def test_rows_that_no_router_sent_are_shared_evenly(rows: int, shares: list[int]) -> None:
    assert tensor_values._even_shares(rows, 3) == shares
