"""The end of a run that has trained nothing, or to nothing."""

import math

import pytest

from pretrain.errors import RunError
from pretrain.training.bad_steps import check_heldout, check_trained
from tests.helpers.small_configs import config


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_heldout_loss_that_is_no_number_ends_the_run(loss: float) -> None:
    with pytest.raises(RunError, match=r"the held-out loss is .*, so nothing is saved"):
        check_heldout(7, loss)
    check_heldout(7, 12.5)


def test_a_run_without_an_update_or_with_gradients_of_zero_alone_has_trained_nothing() -> None:
    half = config(precision="fp16")
    with pytest.raises(RunError, match=r"every step was skipped.*loss_scale\.initial"):
        check_trained(9, 0, None, half)
    with pytest.raises(RunError, match=r"every gradient was zero.*loss_scale\.initial"):
        check_trained(9, 9, 0.0, half)
    check_trained(9, 1, 0.5, half)
    check_trained(9, 8, None, half)  # resumed for a last step that was skipped
