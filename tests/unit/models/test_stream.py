"""Parts of the stream by name."""

import pytest
import torch

from pretrain.models.stream import Stream, StreamParts
from tests.helpers.families import family_config
from tests.helpers.tiny import tiny_config


def test_a_part_is_found_among_others_and_joined_with_them() -> None:
    stream = Stream({"encoder": 3, "decoder": 2, "tables": 1})
    x = torch.arange(6.0).view(6, 1, 1)
    assert stream.part(x, "decoder").flatten().tolist() == [3, 4]
    parts = stream.apart(x)
    assert list(parts) == ["encoder", "decoder", "tables"]
    for part, expected in (("encoder", [9, 9, 9, 3, 4, 5]), ("decoder", [0, 1, 2, 9, 9, 5])):
        changed = {**parts, part: torch.full_like(parts[part], 9)}  # type: ignore[index]
        assert stream.joined(changed).flatten().tolist() == expected
    with pytest.raises(AssertionError, match="no decoder"):
        Stream({"encoder": 3, "tables": 1}).part(x, "decoder")


def test_the_only_part_is_the_stream_itself() -> None:
    x = torch.zeros(4, 1, 1)
    stream = Stream({"decoder": 4})
    assert stream.part(x, "decoder") is x
    assert stream.joined(stream.apart(x)) is x


def test_a_model_s_parts() -> None:
    t5, bert = family_config("t5").model, family_config("bert").model
    # 2 tables of 8 buckets for 4 heads, or 2 of them, in positions of 64 values.
    assert StreamParts(t5, 1).whole(32, 16).lengths == {"encoder": 32, "decoder": 16, "tables": 1}
    assert StreamParts(t5, 2).whole(16, 8).positions == 16 + 8 + 1
    assert StreamParts(bert, 1).whole(32, 32).lengths == {"encoder": 32}
    assert StreamParts(tiny_config().model, 1).whole(32, 32).lengths == {"decoder": 32}
