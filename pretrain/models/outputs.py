"""Outputs of the last pipeline stage, and the way in which engines find the tensors in them."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor


class ModelOutputs(NamedTuple):
    """Outputs of the last stage for one micro-batch, in the order in which they are made. It is a tuple, since in
    tuples megatron-core looks for tensors to cast, and DeepSpeed for those whose gradient begins a backward pass."""

    logits: Tensor | None = None
    """[L, B, V / tensor ranks], where no judge reads them"""
    judged: tuple[Tensor, ...] = ()
    """a judge's results for the logits"""
    next_sentence: Tensor | None = None
    """[B, 2] logits of a pooled head: another document, and the second segment follows"""
    answers: Tensor | None = None
    """[L, B, outputs] of a task head"""
    judged_states: Tensor | None = None
    """a judge's result for the last hidden states"""
    judged_layers: tuple[Tensor, ...] = ()
    """a judge's results for the states of all layers"""
    judged_mtp: tuple[tuple[Tensor, ...], ...] = ()
    """results of a judge for each further token, for its logits"""

    @property
    def other_answers(self) -> Sequence[Tensor]:
        """Outputs of heads beside that of the vocabulary."""
        return [answers for answers in (self.next_sentence, self.answers) if answers is not None]


def tensors_in(outputs: Any) -> Iterator[Tensor]:
    """The tensors in what a module puts out: a tensor, or nested tuples."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, tuple | list):
        for one in outputs:
            yield from tensors_in(one)
