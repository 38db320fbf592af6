"""YaRN's gain enlarges queries and keys alike, wherever a model turns them."""

import numpy as np

from data_pipeline.batch import Rows
from pretrain.attention.core import CoreAttention
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import LENGTH, build_engine

GAIN = 1.5


def _enlarged() -> list[tuple[float, ...]]:
    """Factors by which each call of a layer's attention lengthened the vectors that it rotated."""
    positions = FAMILIES["qwen3"]["model"]["positions"]
    positions = positions | {"scaling": positions["scaling"] | {"attention_factor": GAIN}}
    engine = build_engine(family_config("qwen3", model=FAMILIES["qwen3"]["model"] | {"positions": positions}))
    found: list[tuple[float, ...]] = []
    for module in engine.bare[0].modules():
        if isinstance(module, CoreAttention):
            rotate = module.rotate

            def noted(x, *arguments, rotate=rotate):  # type: ignore[no-untyped-def]
                turned = rotate(x, *arguments)
                found.append(tuple((turned.norm(dim=-1) / x.norm(dim=-1)).aminmax()))
                return turned

            module.rotate = noted
    engine.score(Rows.of(*np.random.default_rng(0).integers(0, 200, (2, 2, LENGTH))))
    return [tuple(map(float, pair)) for pair in found]


def test_queries_and_keys_become_longer_by_the_gain() -> None:
    found = run_ranks(1, _enlarged)[0]
    layers = family_config("qwen3").model.layers
    assert len(found) == 2 * layers
    np.testing.assert_allclose(found, GAIN, rtol=1e-5)
