"""What the last pipeline stage puts out, and how engines find the tensors in it."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor


class ModelOutputs(NamedTuple):
    """Outputs of the last stage for one micro-batch, in the order in which they are made. It is a tuple, since in
    tuples megatron-core looks for tensors to cast, and DeepSpeed for those whose gradient begins a backward pass."""

    logits: Tensor | None = None
    """[L, B, V / tensor ranks], where no judge reads them"""
    judged: tuple[Tensor, ...] = ()
    """what a judge says of the logits"""
    next_sentence: Tensor | None = None
    """[B, 2] logits of a pooled head: another document, and the second segment follows"""
    answers: Tensor | None = None
    """[L, B, outputs] of a task head"""
    judged_states: Tensor | None = None
    """what a judge says of the last hidden states"""
    judged_layers: tuple[Tensor, ...] = ()
    """what a judge says of the states of all layers"""
    judged_mtp: tuple[tuple[Tensor, ...], ...] = ()
    """what a judge for each further token says of its logits"""

    @property
    def other_answers(self) -> Sequence[Tensor]:
        """What heads beside that of the vocabulary put out."""
        return [answers for answers in (self.next_sentence, self.answers) if answers is not None]


def tensors_in(outputs: Any) -> Iterator[Tensor]:
    """The tensors in what a module puts out: a tensor, or nested tuples."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, tuple | list):
        for one in outputs:
            yield from tensors_in(one)
