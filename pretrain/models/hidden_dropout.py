"""Dropout of hidden states."""

from pretrain.models.megatron_config import MegatronConfig
from pretrain.random.dropout import Dropout


class HiddenDropout(Dropout):
    """Dropout of hidden states [S, B, H], whose positions context ranks share, and under sequence parallelism tensor
    ranks each such slice."""

    def __init__(self, config: MegatronConfig) -> None:
        shared_by = ("context", "tensor") if config.sequence_parallel else ("context",)
        super().__init__(config.hidden_dropout, shared_by, rows_second=True, compute=config.kernels.dropout)
