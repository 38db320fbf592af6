"""The gate between two implementations of a model: what passes it, and how far it trusts rounding."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.errors import RunError
from pretrain.interop.hf.gate import GATE, check_stored, largest_difference, our_answers, pass_gate
from pretrain.interop.hf.hf_answers import head_outputs, hf_logits
from tests.helpers.tiny import tiny_config

ROWS = Rows.of(np.arange(8)[None], np.arange(8)[None])


class Model(nn.Module):
    """A model with the interface of transformers: its logits are its embeddings, scaled by `steep`."""

    def __init__(self, steep: float) -> None:
        super().__init__()
        self.config, self.steep = SimpleNamespace(model_type="made up"), steep
        self.embeddings = nn.Embedding.from_pretrained(torch.linspace(1, 1.9, 32).reshape(8, 4))

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.steep * self.embeddings(input_ids))


def _pass(steep: float, difference: float) -> Any:
    theirs = Model(steep)
    (logits,) = hf_logits(theirs, ROWS)
    return pass_gate("imported", (logits + difference,), theirs, ROWS, tiny_config().model)


def test_a_small_difference_passes() -> None:
    agreement = _pass(1.0, 5e-5)
    assert agreement.difference == pytest.approx(5e-5, rel=0.01)
    assert agreement.limit == GATE
    assert "its own" not in str(agreement)


def test_a_model_that_does_not_amplify_rounding_may_differ_by_no_more() -> None:
    with pytest.raises(
        RunError, match=r"not imported: logits differ by 2\.00e-04 from transformers' Model, more than 1\.00e-04"
    ):
        _pass(1.0, 2e-4)


def test_one_that_does_may_differ_by_what_its_own_rounding_makes() -> None:
    """A unit in the last place of a logit between 10,000 and 19,000 is 1e-3 or 2e-3. Each implementation rounds."""
    agreement = _pass(1e4, 1e-3)
    assert 2e-3 < agreement.limit < 1e-2
    assert "limit, twice what a unit in the last place of its weights makes: " in str(agreement)
    with pytest.raises(RunError, match=r"logits differ by 1\.95e-02"):
        _pass(1e4, 2e-2)


def test_each_of_two_implementations_rounds() -> None:
    """Logits of up to 665, which a unit in the last place of weights moves by 1.2e-4 at most."""
    agreement = _pass(350.0, 1.5e-4)
    assert 1.5e-4 < agreement.limit < 3e-4


def test_a_difference_that_is_no_number_passes_no_gate() -> None:
    for steep in (1.0, 1e4):
        with pytest.raises(RunError, match="differ by nan"):
            _pass(steep, float("nan"))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_difference_that_is_no_number_is_seen_in_any_output(place: int) -> None:
    expected = tuple(torch.zeros(2, size) for size in (3, 4, 5))
    logits = tuple(x + number for number, x in enumerate(expected))
    assert largest_difference(logits, expected) == 2
    assert largest_difference(logits[::-1], expected[::-1]) == 2
    logits[place][1, 2] = torch.nan
    assert np.isnan(largest_difference(logits, expected))


def test_a_model_of_two_outputs_passes_no_gate_if_the_second_is_no_number() -> None:
    """Nor are files that it was stored in right."""

    class Answering(Model):
        def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
            logits = super().forward(input_ids).logits
            return SimpleNamespace(prediction_logits=logits, sop_logits=torch.zeros(len(logits), 2))

    theirs, model = Answering(1.0), tiny_config().model
    logits, answers = hf_logits(theirs, ROWS)
    passed = pass_gate("exported", (logits, answers), theirs, ROWS, model)
    assert passed.difference == 0
    broken = logits, answers * torch.nan
    with pytest.raises(RunError, match="not exported: logits differ by nan"):
        pass_gate("exported", broken, Answering(1.0), ROWS, model)
    for dtype, reason in (("fp32", r"other weights than passed the gate \(nan\)"), ("bf16", "logits are not finite")):
        with pytest.raises(RunError, match=reason):
            check_stored(passed, broken, Answering(1.0), ROWS, model, dtype=dtype)


def test_a_model_that_does_not_run_ends_in_a_sentence() -> None:
    class Broken(Model):
        def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
            raise IndexError("angles of 4\nfor heads of 8")

    with pytest.raises(RunError) as error:
        pass_gate("imported", (torch.zeros(1, 8, 4),), Broken(1.0), ROWS, tiny_config().model)
    assert str(error.value) == (
        "not imported: transformers' Broken does not run with this config.json (angles of 4 for heads of 8)"
    )


def test_of_rows_with_queries_these_alone_are_compared() -> None:
    order = np.array([[0, 2, 4, 1, 3], [4, 2, 0, 5, 1]])  # two queries, behind three positions of text
    ids = np.zeros_like(order)
    logits = torch.arange(10.0).reshape(2, 5, 1)
    engine: Any = SimpleNamespace(logits=lambda batch: (logits,))
    (found,) = our_answers(engine, tiny_config().model, Rows(ids, ids, ids.astype(np.float32), order=order))
    assert found[..., 0].tolist() == [[3, 4], [8, 9]]


def test_ends_of_spans_are_given_the_labelled_start_and_the_first_position() -> None:
    """A class of transformers with `end_logits`, such as XLNet's."""
    given: list[list[int]] = []

    def ends(states: Tensor, start_positions: Tensor) -> Tensor:
        given.append(start_positions.tolist())
        return states + 10 * len(given)

    theirs: Any = SimpleNamespace(
        config=SimpleNamespace(model_type="made up"),
        transformer=lambda input_ids, **_: [input_ids.float()],
        start_logits=lambda states: states,
        end_logits=ends,
    )
    labels = np.array([[0, 1, 0, 2], [0, 0, 3, 0]])  # from the second position to the last, and the third alone
    rows = Rows(np.arange(8).reshape(2, 4), labels, (labels >= 0).astype(np.float32))
    (found,) = head_outputs(theirs, rows)
    assert given == [[1, 2], [0, 0]]
    assert found.tolist() == [[n, n + 10, n + 20] for n in range(8)]
