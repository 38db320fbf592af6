"""What a run says of a GPU that computes otherwise than the settings suggest."""

import pytest
import torch

from pretrain.training.device_notes import warnings_of_device
from tests.helpers.small_configs import config


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.version, "hip", None)


@pytest.mark.usefixtures("_gpu")
def test_a_gpu_of_today_has_none() -> None:
    assert warnings_of_device(config(precision="bf16", run={"dir": "run", "kernels": "triton"})) == ()


@pytest.mark.usefixtures("_gpu")
def test_emulated_numbers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert warnings_of_device(config(precision="fp16")) == ()
    (found,) = warnings_of_device(config(precision="bf16"))
    assert found == "Some GPU has no bf16: torch emulates it, slowly. precision=fp16 runs on its tensor cores"


@pytest.mark.usefixtures("_gpu")
def test_kernels_on_rocm_are_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert warnings_of_device(config()) == ()
    (found,) = warnings_of_device(config(run={"dir": "run", "kernels": "compiled"}))
    assert "run.kernels=compiled has not been tried on ROCm (Some GPU)" in found
