"""Tensors on a rehearsal's device answer as torch's do on a GPU: those of this file, of a process that has none."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.models import grouped
from pretrain.models.expert_exchange import ExpertExchange
from pretrain.plan.device import find_device
from pretrain.rehearse.patches.install import _fused_rms_norm, install_patches
from pretrain.rehearse.patches.tensor_device import RequestedMeta
from pretrain.rehearse.recorder import Recorder


def _place(tensor: Tensor) -> str:
    """`cuda:0`, `cpu` or `meta`, if all that says so agrees."""
    said = [
        kind for kind, answer in (("cuda", tensor.is_cuda), ("cpu", tensor.is_cpu), ("meta", tensor.is_meta)) if answer
    ]
    index = tensor.get_device()
    assert said == [tensor.device.type], said
    assert (index >= 0) == tensor.is_cuda
    return f"{said[0]}:{index}" if tensor.is_cuda else said[0]


def _waits(recorder: Recorder, read: Callable[[Tensor], Any], tensor: Tensor) -> int:
    """How often the host waits for the device while it reads values of a tensor."""
    before = recorder.waits.total()
    read(tensor)
    return recorder.waits.total() - before


def _answers() -> dict[str, Any]:
    """Answers of a process in which the device is there; torch stays as it is in that of the tests."""
    config = load(RunConfig, "debug/gpt", ["run.dir=unused"])
    device = find_device("h100")
    recorder = Recorder(device.memory_gib * 2**30)
    install_patches(config, device, recorder)
    with FakeTensorMode(allow_non_fake_inputs=True), recorder:
        x, host = torch.ones(4, 3, device="cuda", dtype=torch.bfloat16), torch.ones(4, 3)
        leaf = torch.ones(4, 3, device="cuda", requires_grad=True)
        leaf[1:].sum().backward()
        assert leaf.grad is not None
        found: dict[str, Any] = {
            "made": _place(x),
            "host": _place(host),
            "like": _place(torch.zeros_like(x)),
            "moved": [_place(host.to(target)) for target in ("cuda", 0, x)],  # type: ignore[call-overload]
            "cuda()": _place(host.cuda()),
            "back": [_place(x.to("cpu")), _place(x.cpu())],
            "dtypes": [host.to(x).dtype, host.to("cuda", torch.float64).dtype, host.cuda().dtype, x.to(0).dtype],
            "new": [_place(x.new_tensor([1.0])), _place(x.new_zeros(2)), _place(host.new_tensor([1.0]))],
            "new dtype": x.new_tensor([1.0]).dtype,
            "gradient": _place(leaf.grad),
            "names": [x.type(), host.type(), x.type(torch.float32).type()],
            "values": [torch.ones(2, device="cuda").tolist(), host[0].tolist(), host.numpy().tolist()],
        }
        stream, event = torch.cuda.current_stream(), torch.cuda.Event()
        found["streams"] = torch.accelerator.current_stream() is stream
        found["events"] = [type(stream.record_event()) is type(event), stream.record_event(event) is event]
        counts = torch.ones(3, device="cuda", dtype=torch.int64)
        exchange: Any = SimpleNamespace(_group=SimpleNamespace(rank=lambda: 1))
        reads: dict[str, Callable[[Tensor], Any]] = {
            "tolist": lambda tensor: tensor.tolist(),
            "counts of experts": lambda tensor: grouped.host_counts(tensor, 7),
            "sizes of exchanges": lambda tensor: ExpertExchange._host_sizes(exchange, tensor, tensor, 7),
        }
        found["waits"] = {
            name: [_waits(recorder, read, one) for one in (counts, counts.cpu())] for name, read in reads.items()
        }
        found["shares"] = [reads["counts of experts"](counts), reads["sizes of exchanges"](counts)]
        found["bytes to a view"] = x[1:].data_ptr() - x.data_ptr()
        with RequestedMeta():
            found["meta"] = _place(torch.ones(2, device="meta"))
            found["beside meta"] = _place(torch.add(host, 1))
        found["numpy"] = [str(torch.ones(2, dtype=one).numpy().dtype) for one in (torch.int64, torch.float16)]
        refused: dict[str, Callable[[], Any]] = {
            "to numpy": x.numpy,
            "bf16 to numpy": lambda: x.cpu().numpy(),
            "other gradient": lambda: setattr(leaf, "grad", host),
        }
        for name, wrong in refused.items():
            try:
                wrong()
            except (TypeError, RuntimeError) as error:
                found[name] = str(error)
    return found


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
        return pool.submit(_answers).result()


def test_a_tensor_is_on_the_device_that_it_was_made_on_or_moved_to(answers: dict[str, Any]) -> None:
    places = ("made", "like", "cuda()", "gradient", "host", "beside meta", "meta")
    assert [answers[name] for name in places] == ["cuda:0"] * 4 + ["cpu"] * 2 + ["meta"]
    assert answers["moved"] == ["cuda:0"] * 3
    assert answers["back"] == ["cpu"] * 2
    assert answers["new"] == ["cuda:0", "cuda:0", "cpu"]


def test_the_device_has_one_stream_which_records_events(answers: dict[str, Any]) -> None:
    assert answers["streams"]
    assert answers["events"] == [True, True]


def test_a_moved_tensor_has_the_type_that_torch_gives_it(answers: dict[str, Any]) -> None:
    assert answers["dtypes"] == [torch.bfloat16, torch.float64, torch.float32, torch.bfloat16]
    assert answers["new dtype"] == torch.bfloat16
    assert answers["names"] == ["torch.cuda.BFloat16Tensor", "torch.FloatTensor", "torch.cuda.FloatTensor"]


def test_values_are_ones_and_what_torch_refuses_is_refused(answers: dict[str, Any]) -> None:
    assert answers["values"] == [[1.0, 1.0], [1.0, 1.0, 1.0], [[1.0] * 3] * 4]
    assert answers["numpy"] == ["int64", "float16"]
    assert answers["bytes to a view"] == 3 * 2
    assert answers["to numpy"].startswith("can't convert cuda:0 device type tensor to numpy.")
    assert answers["bf16 to numpy"] == "Got unsupported ScalarType BFloat16"
    assert answers["other gradient"].startswith("attempting to assign a gradient with device type 'cpu' to a tensor")


def test_the_host_waits_for_values_on_the_device_alone(answers: dict[str, Any]) -> None:
    assert answers["waits"] == {name: [1, 0] for name in ("tolist", "counts of experts", "sizes of exchanges")}
    assert answers["shares"] == [[3, 2, 2], ([3, 2, 2], [2, 2, 2])]


@pytest.mark.parametrize(("dtype", "kept"), [(torch.bfloat16, torch.float32), (torch.float16, torch.float32)])
def test_a_norm_keeps_a_number_of_fp32_for_each_row(dtype: torch.dtype, kept: torch.dtype) -> None:
    """CUDA's kernel does the same. Rows in fp64 keep a number in fp64, by the operator's own formula."""
    x, weight = torch.ones(2, 3, 8, dtype=dtype, device="meta"), torch.ones(8, dtype=dtype, device="meta")
    out, of_rows = _fused_rms_norm(x, [8], weight, 1e-6)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    assert (of_rows.shape, of_rows.dtype) == ((2, 3, 1), kept)
    exact = torch.ones(2, 3, 8, dtype=torch.float64, device="meta")
    assert _fused_rms_norm(exact, [8], None, None)[1].dtype == torch.float64
