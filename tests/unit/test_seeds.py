"""A test, a fixture and a rank draw the same whatever ran before, and no generator in tests/ is without a seed."""

import random as global_random
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.ranks import run_ranks
from tests.helpers.seeds import SEED, unseeded

TESTS = Path(__file__).parents[1]


def _drawn() -> list[float]:
    """From the global generators."""
    draws = [lambda: torch.rand(1).item(), np.random.random_sample, global_random.random]
    return [draw() for draw in draws]


def _expected() -> list[float]:
    legacy = np.random.RandomState(SEED)  # what numpy's global generator is
    own = torch.Generator().manual_seed(SEED)
    return [torch.rand(1, generator=own).item(), legacy.random_sample(), global_random.Random(SEED).random()]


@pytest.fixture(scope="module")
def of_the_file() -> list[float]:
    return _drawn()


@pytest.fixture(params=[0, 1])
def of_a_test(of_the_file: list[float], request: pytest.FixtureRequest) -> list[float]:
    return _drawn()


@pytest.mark.parametrize("turn", [0, 1])
def test_a_test_draws_the_same_whatever_ran_before(turn: int) -> None:
    assert _drawn() == _expected()


def test_a_fixture_draws_the_same_whatever_ran_before(of_the_file: list[float], of_a_test: list[float]) -> None:
    assert of_the_file == of_a_test == _expected()


def test_every_rank_draws_the_same_whatever_ran_before() -> None:
    assert run_ranks(2, _drawn) == [_expected()] * 2


def test_no_generator_is_without_a_seed() -> None:
    found = {str(path.relative_to(TESTS)): unseeded(path.read_text()) for path in TESTS.rglob("*.py")}
    assert {path: calls for path, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nnp.random.default_rng()",
        "import numpy.random\nnumpy.random.default_rng()",
        "from numpy.random import default_rng\ndefault_rng()",
        "import numpy as np\nnp.random.Generator(np.random.PCG64())",
        "import random\nrandom.Random()",
        "from random import Random as Draw\nDraw()",
        "import random\nrandom.seed()",
        "import random\nrandom.shuffle([1, 2])",
        "import random\nrandom.SystemRandom(1)",
        "import torch\ntorch.Generator()",
        "import torch as t\nt.Generator(device='cuda')",
        "import torch\ntorch.seed()",
    ],
)
def test_a_call_without_a_seed_is_found(source: str) -> None:
    (found,) = unseeded(source)
    assert found.startswith("line 2: ")


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nnp.random.default_rng(0).random()",
        "import numpy as np\nnp.random.Generator(np.random.PCG64(seed=3))",
        "import random\nrandom.Random('a name').shuffle([1, 2])",
        "def f(random):\n    random.shuffle([1, 2])",
        "import torch\ntorch.Generator().manual_seed(0)",
        "import torch\ntorch.Generator(device='cuda').manual_seed(0)",
        "import torch\ntorch.randn(3)",
    ],
)
def test_a_call_with_a_seed_is_not(source: str) -> None:
    assert unseeded(source) == []
