"""Who sees whom, printed and drawn."""

from pathlib import Path

from matplotlib.image import imread

from pretrain.config.model import Model
from pretrain.plan.attention_map import lines, picture

MODEL = Model.model_validate({
    "layers": 5, "hidden": 64, "heads": 4, "sequence_length": 100,
    "attention": {"pattern": ["dense", "dense", {"name": "heads", "of": [{"name": "blocks", "block": 10}, "dense"]}]},
})  # fmt: skip


def test_layers_with_one_pattern_are_one_row_with_the_keys_that_queries_see() -> None:
    assert lines(MODEL) == [
        "layers 0-1  dense: 50.5 keys, 100.0% of dense",
        "layer 2     heads(of=blocks(block=10) | dense): 28.0 keys, 55.4% of dense",
        "layers 3-4  dense: 50.5 keys, 100.0% of dense",
    ]


def test_a_picture_has_a_panel_for_each_layer_and_head(tmp_path: Path) -> None:
    picture(MODEL, tmp_path / "map.png")
    image = imread(tmp_path / "map.png")
    assert image.shape[0] > 400
    assert (image[..., 0] < 0.2).mean() > 0.05, "what is seen is dark"
