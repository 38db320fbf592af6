"""Names that libraries do not promise: each is still there, in whatever release is installed."""

import pytest

from tests.helpers import library_names
from tests.helpers.import_law import ROOT, modules


@pytest.mark.parametrize("library", sorted({module.split(".")[0] for module in library_names.USED}))
def test_a_library_has_the_names_that_the_product_reads_or_replaces(library: str) -> None:
    if not library_names.is_installed(library):
        pytest.skip(f"{library} is not installed")
    used = {module: names for module, names in library_names.USED.items() if module.split(".")[0] == library}
    gone = [f"{module}: {name}" for module, names in used.items() for name in names]
    gone = [one for one in gone if not library_names.defines(*one.split(": "))]
    assert gone == []


def test_libraries_have_the_names_that_the_product_imports() -> None:
    named = sorted(set(library_names.imported(modules(), ROOT)))
    assert ("megatron.core.tensor_parallel.random", "_MODEL_PARALLEL_RNG_TRACKER_NAME") in named
    installed = [pair for pair in named if library_names.is_installed(pair[0].split(".")[0])]
    gone = [f"{module}: {name}" for module, name in installed if not library_names.defines(module, name)]
    assert gone == []


@pytest.mark.parametrize(
    ("module", "name", "there"),
    [
        ("megatron.core", "parallel_state", True),
        ("megatron.core", "", True),
        ("megatron.core.optimizer.optimizer", "MegatronOptimizer.gone | MegatronOptimizer.get_parameters", True),
        ("megatron.core.optimizer.optimizer", "MegatronOptimizer.gone", False),
        ("megatron.core.optimizer.distrib_optimizer", "DistributedOptimizer.get_parameters", True),  # inherited
        ("megatron.core.optimizer.optimizer", "gone", False),
        ("megatron.core.gone", "", False),
        ("megatron.core.gone", "name", False),
        ("deepspeed.runtime.zero.parameter_offload", "*.ds_gone", False),
        ("torch._C._distributed_c10d", "HashStore", True),
        ("torch._C._distributed_c10d", "gone", False),
    ],
)
def test_a_name_that_is_gone_is_missed(module: str, name: str, there: bool) -> None:
    assert library_names.defines(module, name) == there
