"""The parts whose work is planned, in the order in which their work is added up."""

from pretrain.plan.estimate.model_work import ModelWork
from pretrain.plan.estimate.parts.experts import ExpertsWork
from pretrain.plan.estimate.parts.latent_attention import LatentAttentionWork
from pretrain.plan.estimate.parts.mtp import MtpWork
from pretrain.plan.estimate.parts.source_encoder import SourceEncoderWork

WORK_OF_PARTS: tuple[ModelWork, ...] = (SourceEncoderWork(), ExpertsWork(), LatentAttentionWork(), MtpWork())
