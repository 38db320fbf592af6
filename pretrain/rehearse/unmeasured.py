"""Memory of a GPU that no rehearsal sees. All figures are constants: that of workspaces is what one H200 had
(docs/benchmarks.md), the others were not measured."""

from pretrain.plan.memory_check import WORKSPACE_BYTES

_MIB = 2**20
CONTEXT_BYTES = 512 * _MIB
"""CUDA's context, with torch's kernels"""
COMMUNICATOR_BYTES = 200 * _MIB
"""buffers of a communicator of NCCL"""

MOST_COMMUNICATORS = 6
"""groups that a device exchanges with at most: tensor, context, pipeline, data, embedding and the norm's"""


def unmeasured_bytes(communicators: int) -> int:
    """Bytes of a rank that uses so many communicators on its device."""
    return CONTEXT_BYTES + WORKSPACE_BYTES + communicators * COMMUNICATOR_BYTES
