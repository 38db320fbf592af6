"""`optimizer`: the update rule. Packages add others: settings in `pretrain.optimizers`, the rule in
`pretrain.update_rules`."""

from collections.abc import Sequence
from math import prod, sqrt
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, SerializeAsAny, model_validator

from data_pipeline.common.plugins import Registry
from pretrain.config.section import Section, named, open_choice

_LEAST_CLIP_NORM = 1e-6  # far below any gradient's norm; smaller ones drown in the eps of the update rules

_SAFETY = 1.01
POLAR_EXPRESS = (
    *(
        (a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5)
        for a, b, c in (
            (8.28721201814563, -23.595886519098837, 17.300387312530933),
            (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
            (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
            (3.3184196573706015, -2.488488024314874, 0.51004894012372),
            (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
            (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
            (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
        )
    ),
    (1.875, -1.25, 0.375),
)
"""Newton-Schulz coefficients of each step, and of all that follow: the best for singular values from 1e-3 of the norm
on (Amsel et al. 2025, arXiv 2505.16932, algorithm 1, with its factor of safety for rounding in bf16)"""


class OptimizerSettings(Section):
    """Settings of an update rule; every one has `weight_decay` too."""

    plugin_group: ClassVar[str] = "pretrain.optimizers"
    """Entry points of other packages' settings."""

    name: str
    learning_rate: float = Field(ge=1e-12, le=1000, description="peak learning rate")
    clip_norm: float = Field(
        1.0, ge=0, description="largest global gradient norm; larger gradients are scaled down to it; 0: no clipping"
    )

    @property
    def num_moments(self) -> int:
        """Memory that the rule takes for each weight of a matrix, in values of fp32."""
        return 2

    def moments_of(self, has_blocks: bool) -> int:
        """Memory that the rule takes for each weight of a parameter, in values of fp32. `has_blocks`: it is declared to
        hold matrices of a layer (`ParameterSpec.blocks`)."""
        return self.num_moments

    def sign_shares(self, updates: int) -> Sequence[float] | None:
        """Share of each of the first `updates` gradients, the oldest first, in the sum whose sign is the direction of a
        step, where all steps have one size. None: its steps are of another kind. `pretrain verify` asks: the sign of a
        sum that is zero within rounding is chance."""
        return None

    @model_validator(mode="after")
    def _trains_something(self) -> "OptimizerSettings":
        """Smaller rates than the least above are below the rounding of every weight in fp32."""
        if 0 < self.clip_norm < _LEAST_CLIP_NORM:
            raise ValueError(
                f"optimizer.clip_norm={self.clip_norm:g} leaves nothing of any gradient: set {_LEAST_CLIP_NORM:g} or "
                "more, or 0 for no clipping"
            )
        rate, decay = self.learning_rate, getattr(self, "weight_decay", 0.0)
        if rate * decay >= 1:
            raise ValueError(
                f"optimizer.weight_decay={decay:g} with optimizer.learning_rate={rate:g} takes away more than each "
                "weight has, in every step: choose values whose product is below 1"
            )
        return self


class _TwoMoments(OptimizerSettings):
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(0.95, ge=0, lt=1, description="decay of the second moment")
    eps: float = Field(1e-8, ge=1e-30, le=1, description="epsilon added to the root of the second moment")
    weight_decay: float = Field(
        0.1, ge=0, description="weight decay, decoupled except for adam; never applied to biases of layers and norms"
    )


class _Adam(_TwoMoments):
    bias_correction: bool = Field(
        True,
        description="divide the moments by 1 - beta^updates, as they begin at zero; false: do not (the authors' BERT "
        "and ELECTRA)",
    )
    moments: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="precision that both moments are held in; bf16: 4 bytes less for each parameter, updates computed "
        "in fp32, new moments rounded stochastically; may differ between starts of a run",
    )

    @property
    def num_moments(self) -> int:
        """Two moments in bf16 take the memory of one."""
        return 2 if self.moments == "fp32" else 1


class AdamWOptimizer(_Adam):
    name: Literal["adamw"] = "adamw"


class AdamOptimizer(_Adam):
    """AdamW with the decay added to the gradient (docs/optimizers.md)."""

    name: Literal["adam"] = "adam"


class LambOptimizer(_TwoMoments):
    name: Literal["lamb"] = "lamb"


class AdafactorOptimizer(OptimizerSettings):
    """Its second moment decays by 1 - step^-0.8."""

    name: Literal["adafactor"] = "adafactor"
    beta1: float = Field(0.0, ge=0, lt=1, description="decay of the first moment; 0: no first moment")
    weight_decay: float = Field(
        0.0, ge=0, description="decoupled weight decay; never applied to biases of layers and norms"
    )
    scale_parameter: bool = Field(
        True, description="scale the learning rate by the root mean square of each parameter (at least 1e-3)"
    )

    @property
    def num_moments(self) -> int:
        """One for `beta1`; those of rows and columns are few."""
        return 1 if self.beta1 else 0


class AdagradOptimizer(OptimizerSettings):
    """Its second moment is the sum of all squares, and never decays (CTRL)."""

    name: Literal["adagrad"] = "adagrad"
    initial_accumulator_value: float = Field(0.1, ge=0, le=1e6, description="initial value of the sum of squares")
    eps: float = Field(1e-10, ge=1e-30, le=1, description="epsilon added to the root of the sum of squares")
    weight_decay: float = Field(
        0.0, ge=0, description="decoupled weight decay; never applied to biases of layers and norms"
    )

    @property
    def num_moments(self) -> int:
        """The sum of squares."""
        return 1


class LionOptimizer(OptimizerSettings):
    """Every weight moves by the learning rate, whatever its gradient: rates are 3 to 10 times smaller than AdamW's, and
    `weight_decay` as many times larger (section 5 of its paper)."""

    name: Literal["lion"] = "lion"
    beta1: float = Field(0.9, ge=0, lt=1, description="share of the momentum in the direction of a step")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the momentum")
    weight_decay: float = Field(
        1.0, ge=0, description="decoupled weight decay; never applied to biases of layers and norms"
    )

    @property
    def num_moments(self) -> int:
        """The momentum."""
        return 1

    def sign_shares(self, updates: int) -> Sequence[float]:
        """See `OptimizerSettings`: the momentum holds the gradients before the last."""
        before = [self.beta1 * (1 - self.beta2) * self.beta2 ** (updates - 1 - n) for n in range(1, updates)]
        return [*before, 1 - self.beta1]


class MuonOptimizer(OptimizerSettings):
    """Orthogonalized momentum for the matrices of layers; AdamW for all else (docs/muon.md). Its defaults are torch's,
    with rates that match AdamW's."""

    name: Literal["muon"] = "muon"
    momentum: float = Field(0.95, ge=0, lt=1, description="decay of the momentum")
    nesterov: bool = Field(True, description="Nesterov momentum: the update is that of the next step's momentum")
    weight_decay: float = Field(
        0.1,
        ge=0,
        description="decoupled weight decay, at the unadjusted rate; never applied to biases of layers and norms",
    )
    adjust_lr_fn: Literal["original", "match_rms_adamw"] = Field(
        "match_rms_adamw",
        description="factor of the rate of an R x C matrix. original: sqrt(max(1, R / C)); match_rms_adamw: update_rms "
        "* sqrt(max(R, C)), with which rates are those of AdamW",
    )
    update_rms: float = Field(
        0.2, gt=0, le=10, description="RMS of updates with match_rms_adamw (Moonlight: 0.2; DeepSeek-V4: 0.18)"
    )
    ns_steps: int = Field(5, ge=1, le=99, description="Newton-Schulz steps with ns_coefficients")
    ns_coefficients: tuple[float, float, float] | Literal["polar_express"] = Field(
        (3.4445, -4.7750, 2.0315),
        description="a, b, c of a step: X = aX + b(XX')X + c(XX')(XX')X; polar_express: those of Amsel et al. 2025, "
        "which differ from step to step",
    )
    ns_final_steps: int = Field(
        0, ge=0, le=99, description="steps with ns_final_coefficients after those (DeepSeek-V4: 2, after 8)"
    )
    ns_final_coefficients: tuple[float, float, float] = Field(
        (2.0, -1.5, 0.5), description="a, b, c of the final steps, which bring singular values to 1"
    )
    ns_precision: Literal["fp32", "bf16x3", "bf16"] = Field(
        "fp32",
        description="precision of the steps. bf16x3, for GPUs: each number in two parts of bf16, within 1e-4 of fp32; "
        "bf16 is torch's, and layouts agree to 1e-2 only",
    )
    eps: float = Field(1e-7, ge=1e-30, le=1, description="least norm that a matrix is divided by")
    per_head: bool = Field(
        False, description="orthogonalize queries, keys and values of each attention head by themselves"
    )
    qk_clip_threshold: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="largest attention score that heads may have: after a step in which one had a larger one, its "
        "query and key weights are scaled down to it (Kimi K2: 100); null: no clipping",
    )
    adamw_learning_rate: float | None = Field(
        None,
        ge=1e-12,
        le=1000,
        description="peak learning rate of what AdamW updates, on the same schedule; default: learning_rate",
    )
    adamw_beta1: float = Field(0.9, ge=0, lt=1, description="decay of AdamW's first moment")
    adamw_beta2: float = Field(0.95, ge=0, lt=1, description="decay of AdamW's second moment")
    adamw_eps: float = Field(1e-8, ge=1e-30, le=1, description="epsilon of AdamW")

    @property
    def steps(self) -> list[tuple[float, float, float]]:
        """Coefficients of each Newton-Schulz step."""
        if self.ns_coefficients == "polar_express":
            first = [POLAR_EXPRESS[min(n, len(POLAR_EXPRESS) - 1)] for n in range(self.ns_steps)]
        else:
            first = [self.ns_coefficients] * self.ns_steps
        return first + [self.ns_final_coefficients] * self.ns_final_steps

    @property
    def amplification(self) -> float:
        """The most that the steps multiply a small difference of a matrix of norm 1 by: their slopes at zero."""
        return prod(abs(a) for a, _, _ in self.steps)

    def rate_factor(self, rows: float, columns: float) -> float:
        """Factor of the learning rate of a matrix, at the width that it is tuned at (`model_spec.mup.muon_rate`)."""
        if self.adjust_lr_fn == "original":
            return sqrt(max(1, rows / columns))
        return self.update_rms * sqrt(max(rows, columns))

    @property
    def adamw_rate_factor(self) -> float:
        """Rate of what AdamW updates, relative to that of matrices."""
        return (self.adamw_learning_rate or self.learning_rate) / self.learning_rate

    @property
    def num_moments(self) -> int:
        """The momentum."""
        return 1

    def moments_of(self, has_blocks: bool) -> int:
        """The momentum, or both moments of AdamW."""
        return 1 if has_blocks else 2

    @model_validator(mode="after")
    def _keeps_weights(self) -> "MuonOptimizer":
        rate = self.adamw_learning_rate or 0.0
        if rate * self.weight_decay >= 1:
            raise ValueError(
                f"optimizer.weight_decay={self.weight_decay:g} with optimizer.adamw_learning_rate={rate:g} takes away "
                "more than each weight has, in every step: choose values whose product is below 1"
            )
        return self


_BuiltIn = (
    AdamWOptimizer
    | AdamOptimizer
    | LambOptimizer
    | AdafactorOptimizer
    | AdagradOptimizer
    | LionOptimizer
    | MuonOptimizer
)
OPTIMIZERS: Registry[type[OptimizerSettings]] = Registry(
    OptimizerSettings.plugin_group,
    {str(kind.model_fields["name"].default): kind for kind in get_args(_BuiltIn)},
    OptimizerSettings,
)
Optimizer = Annotated[
    _BuiltIn, Discriminator("name"), open_choice(OPTIMIZERS), BeforeValidator(named("adamw")), SerializeAsAny()
]
