"""Operations that a model asks for."""

import pytest

from pretrain.model_spec.flops import training_flops_per_token
from tests.helpers.small_configs import small_model as model


class TestOperations:
    def test_counted_by_hand(self) -> None:
        # Forward multiply-adds per token: 192 weights of the layer, 10 logits of 4; scores and values on 4.5 keys
        # (mean of 1..8), 4 wide. Two operations each, backward twice forward.
        assert training_flops_per_token(model()) == 3 * 2 * (192 + 40 + 2 * 4.5 * 4)

    def test_a_band_costs_less(self) -> None:
        banded = model(layers=2, attention={"pattern": ["dense", "banded"], "window": 2})
        dense = model(layers=2)
        # One of the two layers sees (1 + 7 * 2) / 8 keys and not 4.5.
        saved = 3 * 4 * (4.5 - 15 / 8) * 4
        assert training_flops_per_token(dense) - training_flops_per_token(banded) == pytest.approx(saved)

    def test_padding_rows_are_no_work_of_the_model(self) -> None:
        assert training_flops_per_token(model()) == training_flops_per_token(model(vocabulary_multiple=1024))

    def test_narrow_embeddings_cost_their_projections(self) -> None:
        shape = {"family": "bert", "norm": "post"}
        wide, narrow = model(**shape), model(**shape, embedding_size=3)
        # Logits of 3 and not 4, a transform to 3 and not 4, and 3 x 4 weights before the layer.
        assert training_flops_per_token(narrow) - training_flops_per_token(wide) == 6 * (-10 - 4 + 12)

    def test_layers_that_are_one_are_computed_each(self) -> None:
        assert training_flops_per_token(model(layers=3, shared_layers=True)) == training_flops_per_token(
            model(layers=3)
        )

    def test_shared_keys_cost_less(self) -> None:
        # One key and value head for two queries: 2 x 2 columns of 4 less, of keys and of values.
        assert training_flops_per_token(model()) - training_flops_per_token(model(kv_heads=1)) == 6 * 2 * 2 * 4

    def test_a_gate_is_a_third_matrix(self) -> None:
        # Of 4 x 16 weights.
        plain, gated = (model(activation=name, ffn=16) for name in ("gelu", "gated_gelu"))
        assert training_flops_per_token(gated) - training_flops_per_token(plain) == 6 * 4 * 16

    def test_an_encoder_decoder_counts_each_part_at_its_own_positions(self) -> None:
        # 192 weights of each layer, 64 more of attention to the encoder: queries and outputs at 3 positions, keys and
        # values at 8. Of keys 4 wide, scores and values: 8 seen at 8 positions, 2 at 3 (mean of 1..3), and 8 at 3.
        shape = model(family="t5", positions="relative", encoder_layers=1, target_length=3)
        encoder, decoder = 8 * (192 + 8 * 8), 3 * (192 + 8 * 2)
        across, head = 2 * 16 * 8 + 2 * 16 * 3 + 3 * 8 * 8, 3 * 40
        assert training_flops_per_token(shape) == 6 * (encoder + decoder + across + head) / 8
