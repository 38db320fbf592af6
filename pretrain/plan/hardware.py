"""Peak speed of known accelerators, by the name that the driver reports. An unknown device has none, and so no MFU."""

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Peak:
    """Dense operations per second (no structured sparsity), at boost clock."""

    device: str
    """regular expression that matches the full name, without the vendor"""
    bf16_flops: float | None
    """tensor cores with fp32 accumulation; None: no bf16 in hardware"""
    fp32_flops: float
    """without TF32, which torch leaves off for matrix products"""
    fp16_flops: float | None = None
    """tensor cores with fp32 accumulation; None: as in bf16"""
    fp8_flops: float | None = None
    """fp8 tensor cores with fp32 accumulation; None: no fp8 in hardware"""


# NVIDIA's data sheets. Where they print only the figure with sparsity, half of it.
PEAKS = (
    Peak(r"V100-SXM2-\d+GB", None, 15.7e12, 125e12),  # Tesla V100 data sheet (2020)
    Peak(r"V100-PCIE-\d+GB", None, 14.0e12, 112e12),  # the same
    Peak(r"A100-(SXM4|PCIE)-(40|80)GB|A100 80GB PCIe", 312e12, 19.5e12),  # A100 data sheet (2022)
    Peak(r"A10", 125e12, 31.2e12),  # A10 data sheet (2022)
    Peak(r"A40", 149.7e12, 37.4e12),  # A40 data sheet (2022)
    Peak(r"RTX A6000", 154.8e12, 38.7e12),  # GA102 white paper v2, RTX A6000 data sheet
    Peak(r"L4", 121e12, 30.3e12, fp8_flops=242.5e12),  # L4 data sheet (2023)
    Peak(r"L40", 181.05e12, 90.5e12, fp8_flops=362e12),  # L40 data sheet (2023)
    Peak(r"L40S", 362.05e12, 91.6e12, fp8_flops=733e12),  # L40S data sheet (2023)
    Peak(r"GeForce RTX 3090", 71e12, 35.6e12),  # GA102 white paper v2, appendix A
    Peak(r"GeForce RTX 4090", 165.2e12, 82.6e12, fp8_flops=330.3e12),  # Ada white paper v2, appendix A
    Peak(r"H100 PCIe", 756e12, 51e12, fp8_flops=1513e12),  # H100 data sheet (2022)
    Peak(r"H100 80GB HBM3", 989.4e12, 66.9e12, fp8_flops=1978.9e12),  # SXM5: Hopper white paper v1.04, table 2
    Peak(r"H100 NVL", 835e12, 60e12, fp8_flops=1670.5e12),  # H100 data sheet (2024)
    Peak(r"H200", 989.4e12, 66.9e12, fp8_flops=1978.9e12),  # SXM5, the same chip: H200 data sheet (2024)
    Peak(r"H200 NVL", 835e12, 60e12, fp8_flops=1670.5e12),  # H200 data sheet (2024)
    Peak(r"GH200 \d+GB?( HBM3e)?", 989.4e12, 66.9e12, fp8_flops=1978.9e12),  # GH200 data sheet (2024)
    Peak(r"B200", 2250e12, 75e12, fp8_flops=4500e12),  # HGX B200 data sheet (2024), an eighth of the board
)


def peak_flops(device_name: str, precision: Literal["fp32", "bf16", "fp16", "fp8"]) -> float | None:
    """Dense peak of one device in operations per second, or None where it is not known. The whole name must match:
    a slice of a device (MIG) or a variant with fewer units is another device. That of fp8 is out of reach: attention
    and logits stay in bf16."""
    name = re.sub(r"^(NVIDIA |Tesla )+", "", device_name)
    for peak in PEAKS:
        if re.fullmatch(peak.device, name):
            return {
                "fp32": peak.fp32_flops,
                "bf16": peak.bf16_flops,
                "fp16": peak.fp16_flops or peak.bf16_flops,
                "fp8": peak.fp8_flops,
            }[precision]
    return None
