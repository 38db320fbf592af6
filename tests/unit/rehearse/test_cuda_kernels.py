"""Operators without a CUDA kernel, by torchgen's table."""

import sys
from pathlib import Path

import pytest

from pretrain.rehearse.cuda_kernels import _table, without_cuda_kernel


def test_the_table_is_torchgen_s_wherever_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment may see the torch of another one."""
    expected, moved = without_cuda_kernel(), tmp_path / "torchgen/packaged/ATen/native/native_functions.yaml"
    moved.parent.mkdir(parents=True)
    (tmp_path / "torchgen/__init__.py").touch()
    more = "- func: of_this_table(Tensor self) -> Tensor\n  dispatch:\n    CPU: of_this_table_cpu\n"
    moved.write_text(_table().read_text() + more)
    monkeypatch.delitem(sys.modules, "torchgen", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert without_cuda_kernel.__wrapped__() == expected | {"of_this_table"}
