"""Score masks (biases added to scores, -inf where a key is masked) that calls of attention share.

With ALiBi the mask depends on slopes, positions and mask rules alone, so the layers, micro-batches and interleaved
chunks of a rank need the same one: it is made once and freed when none of them needs it any more.
"""

from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

from torch import Tensor


class ScoreMask:
    """A mask [B or 1, H, Q, K], which nobody may write to."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def keep_until_backward(self, out: Tensor) -> None:
        """Keeps the mask for as long as the backward pass of `out`, which was computed with it, is still to come. The
        kernel saves the mask's memory; this lets other calls find it."""
        if out.grad_fn is None:
            return
        kept: dict[str, ScoreMask] = out.grad_fn.metadata  # type: ignore[assignment]
        kept["score_mask"] = self

        def release(*_: object) -> None:
            """On the last stage the output outlives its backward pass, until the next micro-batch has another."""
            kept.pop("score_mask", None)

        out.grad_fn.register_hook(release)


_shared: WeakValueDictionary[Hashable, ScoreMask] = WeakValueDictionary()


class ScoreMasks:
    """The score masks of a micro-batch. It holds those that other micro-batches share: recomputation needs them again
    in the backward pass. One that depends on the micro-batch lives while a backward pass needs it."""

    def __init__(self) -> None:
        self._held: dict[Hashable, ScoreMask] = {}
        self._of_batch: WeakValueDictionary[Hashable, ScoreMask] = WeakValueDictionary()

    def shared(self, key: Hashable, make: Callable[[], Tensor]) -> ScoreMask:
        """The mask that `key` determines alone."""
        if key not in self._held:
            self._held[key] = _existing(_shared, key, make)
        return self._held[key]

    def batch_mask(self, key: Hashable, make: Callable[[], Tensor]) -> ScoreMask:
        """The mask that `key` and the rows of the micro-batch determine."""
        return _existing(self._of_batch, key, make)


def _existing(masks: WeakValueDictionary[Hashable, ScoreMask], key: Hashable, make: Callable[[], Tensor]) -> ScoreMask:
    mask = masks.get(key)
    if mask is None:
        mask = masks[key] = ScoreMask(make())
    return mask
