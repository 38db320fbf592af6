"""What a teacher adds to a loss, on one rank, against the papers' formulas in fp64: of rows with few labels, with none,
and with padding, so that positions, those that are no padding, and those with a label all differ."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.models.cross_entropy import CrossEntropy
from pretrain.models.inputs import MicroBatch
from pretrain.models.last_states import LastStates
from pretrain.models.layer_states import LayerStates
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives import matched_layers
from pretrain.objectives.base import LossGroups
from pretrain.objectives.distillation import DistillationLoss
from pretrain.objectives.terms import scales, total
from tests.helpers.families import family_config

LENGTH, VOCABULARY, WIDTH = 6, 10, 12
SHOWN = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], bool)
LABELLED = np.array([[0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]], np.float32)
ALL = {"kl_weight": 5.0, "label_weight": 2.0, "cosine_weight": 1.0, "hidden_weight": 3.0, "attention_weight": 0.7}
SOFT = {"kl_weight": 0.5, "label_weight": 2.0}


class _Group:
    """A process group of one rank, or of two, in which this rank is the second."""

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return 1 + self._rank


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda group: group.rank())
    monkeypatch.setattr(dist, "get_world_size", lambda group: group.size())
    monkeypatch.setattr(dist, "all_reduce", lambda values, op=None, group=None: None)
    monkeypatch.setattr(matched_layers, "reduce_from_tensor_model_parallel_region", lambda values, group: values)


def _loss(family: str, settings: dict[str, float], context_rank: int = 0) -> DistillationLoss:
    objective = {"name": "masked", "next_sentence": False} if family == "bert" else {"name": "causal"}
    student = family_config(
        family, model={"vocabulary": VOCABULARY, "binary_head": False, "heads": 4, "kv_heads": None},
        objective=objective,
    )  # fmt: skip
    teacher = student.model.model_dump(mode="json") | {"layers": 8, "head_dim": 36}
    distillation = {"teacher": "unused", "teacher_model": teacher, "temperature": 1.5} | settings
    config = RunConfig.model_validate(student.model_dump(mode="json") | {"distillation": distillation})
    kernels: Any = SimpleNamespace(
        cross_entropy=lambda logits, labels, group: CrossEntropy.apply(logits, labels), log_sums=None
    )
    groups: Any = LossGroups(tensor=_Group(), context=_Group(context_rank))  # type: ignore[arg-type]
    return DistillationLoss(config, kernels, groups)


class _Inputs:
    """Made-up states of both models, and the rows that they are of. `leaves` are the model's."""

    def __init__(self, shown: np.ndarray | None) -> None:
        draw = torch.Generator().manual_seed(0)

        def states(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw)

        rows = len(LABELLED)
        tokens = torch.randint(VOCABULARY, (rows, LENGTH), generator=draw)
        self.rows = Rows(tokens.numpy(), tokens.numpy(), LABELLED, attention_mask=shown)
        self.leaves = {
            "logits": 3 * states(LENGTH, rows, WIDTH),
            "last": states(LENGTH, rows, 8),
            "hidden": states(5, LENGTH, rows, 8),
            "queries": states(4, LENGTH, rows, 4, 2),
            "keys": states(4, LENGTH, rows, 4, 2),
        }
        self.theirs = {name: states(*value.shape) for name, value in self.leaves.items() if name != "logits"}
        self.theirs |= {"projected": states(LENGTH, rows, 8), "weight": states(WIDTH, 8)}
        self.other_head = states(rows, 2).requires_grad_()
        for leaf in self.leaves.values():
            leaf.requires_grad_()
        self.batch = MicroBatch(
            tokens_BS=tokens, positions_BS=tokens, labels_BL=tokens, loss_mask_BL=torch.from_numpy(LABELLED),
            attention_mask_BS=None if shown is None else torch.from_numpy(shown),
            teacher=LastStates(
                hidden_LBH=self.theirs["last"], projected_LBH=self.theirs["projected"], weight_VH=self.theirs["weight"],
                bias_V=None, finish=lambda logits: logits, layers=_layers(self.theirs),
            ),
        )  # fmt: skip

    def model(
        self, batch: MicroBatch, judge: Any, judge_states: Any = None, judge_layers: Any = None
    ) -> ModelOutputs:  # fmt: skip
        """In the place of a network, which makes logits a few positions at a time and forgets them."""
        found = [judge(self.leaves["logits"][where].clone(), where) for where in (slice(0, 2), slice(2, LENGTH))]
        return ModelOutputs(
            judged=tuple(torch.stack(one).sum() for one in zip(*found, strict=True)),
            next_sentence=self.other_head,
            judged_states=None if judge_states is None else judge_states(self.leaves["last"]),
            judged_layers=() if judge_layers is None else judge_layers(_layers(self.leaves)),
        )


def _layers(values: dict[str, Tensor]) -> LayerStates:
    return LayerStates(values["hidden"], tuple(values["queries"]), tuple(values["keys"]))


def _expected(inputs: _Inputs, ours: dict[str, Tensor], shown: np.ndarray) -> dict[str, tuple[Tensor, int]]:
    """The mean of each term, in fp64, and of how many it is; by hand."""
    theirs = {name: value.double() for name, value in inputs.theirs.items()}
    places = [(row, position) for row, position in zip(*shown.nonzero(), strict=True)]
    asked = [(row, position) for row, position in zip(*LABELLED.nonzero(), strict=True)]
    logits, labels = ours["logits"][..., :VOCABULARY], inputs.batch.labels_BL
    of_teacher = (theirs["projected"] @ theirs["weight"].T)[..., :VOCABULARY]
    tokens = [-logits[i, row].log_softmax(-1)[labels[row, i]] for row, i in asked]
    kl, cosine, hidden, pairs = [], [], [], []
    for row, i in places:
        p, q = ((one[i, row] / 1.5).softmax(-1) for one in (of_teacher, logits))
        kl.append(1.5**2 * (p * (p / q).log()).sum())
        u, v = ours["last"][i, row], theirs["last"][i, row]
        cosine.append(1 - (u @ v) / (u.norm() * v.norm()))
        hidden.append(sum(((ours["hidden"][k, i, row] - theirs["hidden"][k, i, row]) ** 2).mean() for k in range(5)))
        for j in (j for other, j in places if other == row):
            of_one, of_other = (
                (one["queries"][:, i, row] * one["keys"][:, j, row]).sum(-1) / size**0.5
                for one, size in ((ours, 16), (theirs, 36))
            )
            pairs.append(((of_one - of_other) ** 2).mean(-1).sum())
    found = {"tokens": tokens, "kl": kl, "cosine": cosine, "hidden": hidden, "attention": pairs}
    return {name: (torch.stack(list(each)).mean(), len(each)) for name, each in found.items()}


@pytest.mark.parametrize(
    ("family", "settings", "shown"),
    [
        ("bert", ALL, SHOWN),
        ("bert", ALL, None),
        ("bert", SOFT, SHOWN),
        ("bert", {"kl_weight": 1.0, "label_weight": 0.0}, SHOWN),
        ("bert", {"kl_weight": 0.0, "label_weight": 1.0, "cosine_weight": 2.0}, SHOWN),
        ("llama", SOFT, None),
    ],
)
def test_terms_counts_and_gradients_are_those_of_the_papers(
    family: str, settings: dict[str, float], shown: np.ndarray | None
) -> None:
    """An encoder is compared at every token that is no padding, a decoder at its labels. Another head's answers are in
    the graph, so that its parameters have a gradient, which is zero."""
    inputs, loss = _Inputs(shown), _loss(family, settings)
    ours = {name: leaf.detach().double().requires_grad_() for name, leaf in inputs.leaves.items()}
    at = LABELLED > 0 if family == "llama" else np.ones_like(SHOWN) if shown is None else shown
    expected = _expected(inputs, ours, at)
    named = {"tokens": "label_weight", "kl": "kl_weight", "cosine": "cosine_weight"}
    named |= {"hidden": "hidden_weight", "attention": "attention_weight"}
    wanted = {name: settings.get(key, 0.0) for name, key in named.items()}
    wanted = {name: weight for name, weight in wanted.items() if weight or name == "tokens"}
    assert dict(loss.weights) == wanted
    counts = loss.counts(inputs.rows)
    assert counts == [expected[name][1] for name in wanted]
    factors = scales(loss.weights, counts)
    terms = loss.terms(loss.forward_train(inputs.model, inputs.batch, factors), inputs.batch)  # type: ignore[arg-type]
    for name, (mean, count) in expected.items():
        if name in wanted:
            assert int(terms[name].count) == count, name
            assert float(terms[name].sum.detach()) / count == pytest.approx(float(mean.detach()), rel=1e-5), name
    assert list(terms) == list(wanted)
    exact = sum(weight * expected[name][0] for name, weight in wanted.items())
    assert isinstance(exact, Tensor)
    for name, gradient in zip(ours, _gradients(exact, ours), strict=True):
        (found,) = _gradients(total(terms, factors) / counts[0], {name: inputs.leaves[name]})
        torch.testing.assert_close(
            found.double(), gradient, rtol=1e-4, atol=1e-6, msg=lambda said, name=name: name + said
        )
    (of_other,) = torch.autograd.grad(total(terms, factors), [inputs.other_head])
    assert not of_other.any()


def _gradients(loss: Tensor, leaves: dict[str, Tensor]) -> list[Tensor]:
    of = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True, allow_unused=True)
    return [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(of, leaves.values(), strict=True)]


def test_a_context_rank_compares_its_own_positions() -> None:
    """A row's padding is known of all its positions, labels of this rank's."""
    ids, labelled = torch.zeros(3, 3, dtype=torch.long), torch.from_numpy(LABELLED[:, 3:])
    batch = MicroBatch(
        tokens_BS=ids, positions_BS=ids, labels_BL=ids, loss_mask_BL=labelled, attention_mask_BS=torch.from_numpy(SHOWN)
    )
    for family, expected in (("bert", SHOWN[:, 3:]), ("llama", LABELLED[:, 3:])):
        compared_BL = _loss(family, SOFT, context_rank=1)._compared(batch)
        assert compared_BL.dtype == torch.float32
        assert compared_BL.tolist() == expected.tolist()


def test_scores_are_those_of_tokens_alone() -> None:
    assert _loss("bert", ALL).scored == ()
