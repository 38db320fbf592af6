"""The head of the families' networks."""

from megatron.core.process_groups_config import ProcessGroupCollection
from torch import Tensor

from pretrain.classics.transformer_xl.adaptive_softmax import AdaptiveSoftmax
from pretrain.config.model import Model
from pretrain.models.heads import PlainHead, Project
from pretrain.models.hidden_dropout import HiddenDropout
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.network import FamilyParts
from pretrain.models.outputs import ModelOutputs


class DroppedHead(PlainHead):
    """Logits of the last layer after dropout (XLNet), or log probabilities of an adaptive softmax (Transformer-XL)."""

    def __init__(self, megatron: MegatronConfig, softmax: AdaptiveSoftmax | None) -> None:
        super().__init__(bias=True)
        self.dropout, self.softmax = HiddenDropout(megatron), softmax

    def forward(self, hidden_LBH: Tensor, project: Project) -> ModelOutputs:
        x_LBH = self.dropout(hidden_LBH)
        return super().forward(x_LBH, project) if self.softmax is None else project(x_LBH, self.softmax)


def dropped(model: Model, megatron: MegatronConfig) -> DroppedHead:
    """See `network.Head`."""
    group = ProcessGroupCollection.use_mpu_process_groups(["tp"]).tp
    return DroppedHead(megatron, AdaptiveSoftmax(model.cutoffs, model.vocab_size, group) if model.cutoffs else None)


PARTS = FamilyParts(head=dropped)
