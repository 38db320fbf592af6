"""What each of CANINE's predictions in order knows: the character and the place of the one before it."""

from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from pretrain.classics.canine.modules import FIRST_KNOWN, CharacterEmbedding, CharacterOutput, molecule_inputs

BUCKETS, PLACES, SEGMENTS = 64, 10, 2
LABELS = torch.tensor([[5, 9, 63, 0], [7, 7, 1, 0]])
AT = torch.tensor([[8, 2, 5, 0], [1, 9, 3, 0]])


def _table(rows: int, unit: float) -> nn.Embedding:
    """Row n is n units."""
    return nn.Embedding.from_pretrained(unit * torch.arange(rows, dtype=torch.float32)[:, None])


def _known(segments: nn.Embedding | None) -> Tensor:
    """[rows, predictions], whose sums say which rows of the tables were added."""
    parts = SimpleNamespace(
        position_embeddings=_table(PLACES, 100.0), segment_embeddings=segments, norm=lambda x: 2 * x
    )
    inner = SimpleNamespace(buckets=BUCKETS, encoder=parts, _hashed=_table(BUCKETS, 1.0))
    batch = SimpleNamespace(label_positions_BL=AT, labels_BL=LABELS)
    return CharacterEmbedding._known(cast("Any", inner), cast("Any", batch))[..., 0].T


def test_a_prediction_in_order_knows_character_and_place_of_the_one_before() -> None:
    first = FIRST_KNOWN % BUCKETS  # [CLS], at position 0
    expected = [[first, 805, 209, 563], [first, 107, 907, 301]]
    assert _known(None).tolist() == [[2 * one for one in row] for row in expected]


def test_what_is_known_lies_in_the_first_segment() -> None:
    segments = nn.Embedding.from_pretrained(torch.tensor([[1000.0], [5000.0]]))
    assert torch.equal(_known(segments), _known(None) + 2000)


def test_a_head_for_the_row_reads_the_first_molecule_at_every_place() -> None:
    """CANINE's sequence classifiers don't upsample, so they have no final character layer."""
    molecules_MBH = torch.arange(24.0).reshape(3, 2, 4)
    layer: Any = SimpleNamespace(up=None)
    batch: Any = SimpleNamespace(labels_BL=torch.zeros(2, 5))
    out_LBH = CharacterOutput.forward(layer, {"encoder": molecules_MBH}, batch)
    assert torch.equal(out_LBH, molecules_MBH[0].expand(5, 2, 4))


def test_a_molecule_is_seen_where_any_of_its_characters_is() -> None:
    """CANINE's authors pool the mask by its maximum, so a text that ends inside a molecule still shows it."""
    shown_BS = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]]).bool()
    batch: Any = SimpleNamespace(attention_mask_BS=shown_BS, positions_BS=torch.arange(8).expand(2, 8))
    model: Any = SimpleNamespace(row_rate=4)
    reads = molecule_inputs(model)(batch, cast("Any", None), None).own["encoder"]
    assert reads.key_mask_BK is not None
    assert reads.key_mask_BK.tolist() == [[True, True], [True, False]]
    assert reads.positions_BS is not None
    assert reads.positions_BS.tolist() == [[0, 4]] * 2
