"""Maximal update parametrization: what `model.mup` makes of the parameters of a model (Yang et al. 2022, arXiv
2203.03466, table 8, in the form in which a head may be tied to the embedding).

With m the width in multiples of `mup.base_width`, and m_in the number of inputs of a matrix in multiples of the base's:

| | Initial deviation | Learning rate | Weight decay | eps |
|---|---|---|---|---|
| linear layers, whose inputs grow (`fan_in`) | / sqrt(m_in) | / m_in | * m_in, so that rate * decay stays | / m |
| tables, head, norms, biases, layers with inputs of a fixed number | the base's | the base's | the base's | / m |

Logits are multiplied by `output_multiplier` / m, embeddings by `input_multiplier` (`models/`). Gradients fall as 1 / m,
so eps does too. Schemes other than `normal` have deviations that fall with the inputs as they are.

The rates are those of rules whose steps have one size for each weight. Muon's have one size for each direction of a
matrix, so that its rates are others (`muon_rate`)."""

from dataclasses import replace
from math import sqrt

from pretrain.config.init import NormalInit
from pretrain.config.model import Model
from pretrain.config.optimizer import MuonOptimizer
from pretrain.model_spec.parameter_spec import Constant, Normal, ParameterSpec

OUTPUT_LAYER = "output_layer.weight"


def with_mup(model: Model, specs: list[ParameterSpec]) -> list[ParameterSpec]:
    """`specs` of `model` with the deviations and multipliers of its `mup`."""
    if model.mup is None:
        return specs
    return [_at_width(model, spec) for spec in specs]


def _at_width(model: Model, spec: ParameterSpec) -> ParameterSpec:
    ratios = {"width": model.width_ratio, "ffn": model.ffn_ratio, None: 1.0}
    ratio = ratios[spec.fan_in]
    init = spec.init
    if spec.name == OUTPUT_LAYER and model.mup is not None and model.mup.zero_head:
        init = Constant(0.0)
    if isinstance(init, Normal) and isinstance(model.init, NormalInit) and not spec.name.endswith(".lora_a.weight"):
        init = replace(init, deviations=tuple(deviation / sqrt(ratio) for deviation in init.deviations))
    return replace(
        spec,
        init=init,
        lr_mult=spec.lr_mult / ratio,
        wd_mult=spec.wd_mult * ratio,
        eps_mult=spec.eps_mult / model.width_ratio,
        fan_in_ratio=ratio,
        fan_out_ratio=ratios[spec.fan_out],
    )


def muon_rate(settings: MuonOptimizer, spec: ParameterSpec, rows: int, columns: int) -> float:
    """Factor of the rate of one of Muon's matrices, [rows, columns] in the parameter `spec`, beside its `lr_mult`.

    Features keep their size if the spectral norm of a step grows with the width as sqrt(outputs / inputs) (Yang, Simon
    and Bernstein 2023, arXiv 2310.17813, condition 1). That of an orthogonalized matrix is 1. So it is the factor of
    the base's matrix times sqrt(m_out / m_in), whatever `adjust_lr_fn` makes of shapes, and 1 / m_in in `lr_mult`, for
    rules whose steps have one size for each weight, is taken back."""
    assert spec.blocks is not None
    inputs = spec.fan_in_ratio
    outputs = 1.0 if settings.per_head and spec.blocks.are_heads else spec.fan_out_ratio  # heads keep their size
    return settings.rate_factor(rows / outputs, columns / inputs) * sqrt(outputs / inputs) * inputs
