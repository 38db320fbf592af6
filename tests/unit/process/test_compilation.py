"""Time that goes into compiling kernels."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from pretrain.attention import compiled
from pretrain.process import compilation


def test_torch_compile_counts_once_and_names_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # generates no code
    function = compiled.compiled(lambda x: (x * 2 + 1).relu().sum())
    before = compilation.seconds()
    function(torch.ones(3))
    spent = compilation.seconds() - before
    assert spent > 0
    assert not compiled.is_compiling()
    function(torch.ones(3))
    assert compilation.seconds() - before == spent
    assert cache_dir() in compilation.folders()


def test_triton_counts_unless_torch_compile_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    from pretrain.models.triton import compile_time

    compile_time.watch()
    assert triton.knobs.cache.dir in compilation.folders()

    def report() -> float:
        before, times = compilation.seconds(), SimpleNamespace(total=2_000_000)
        triton.knobs.compilation.listener(src=None, metadata={}, metadata_group={}, times=times, cache_hit=False)
        return compilation.seconds() - before

    assert report() == pytest.approx(2)
    monkeypatch.setattr(compiled, "_began", [0.0])
    assert report() == 0
