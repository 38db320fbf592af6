"""Peaks of devices."""

import pytest

from pretrain.plan.device import device_names, find_device
from pretrain.plan.hardware import known_peaks, peak_flops


class TestPeaks:
    @pytest.mark.parametrize(
        ("name", "bf16"),
        [
            ("NVIDIA A100-SXM4-80GB", 312e12),
            ("A100-SXM4-40GB", 312e12),
            ("NVIDIA A100-PCIE-40GB", 312e12),
            ("NVIDIA A100 80GB PCIe", 312e12),
            ("NVIDIA H100 80GB HBM3", 989.4e12),
            ("NVIDIA H100 PCIe", 756e12),
            ("NVIDIA H100 NVL", 835e12),
            ("NVIDIA H200", 989.4e12),
            ("NVIDIA GH200 480GB", 989.4e12),
            ("NVIDIA GH200 144G HBM3e", 989.4e12),
            ("NVIDIA L4", 121e12),
            ("NVIDIA L40S", 362.05e12),
            ("NVIDIA B200", 2250e12),
        ],
    )
    def test_known_devices(self, name: str, bf16: float) -> None:
        assert peak_flops(name, "bf16") == peak_flops(name, "fp16") == bf16

    @pytest.mark.parametrize(
        ("file", "driver"),
        [
            ("a100-40", "NVIDIA A100-SXM4-40GB"),
            ("a100-80", "NVIDIA A100-SXM4-80GB"),
            ("b200", "NVIDIA B200"),
            ("h100", "NVIDIA H100 80GB HBM3"),
            ("h200", "NVIDIA H200"),
            ("l40s", "NVIDIA L40S"),
            ("v100", "Tesla V100-SXM2-32GB"),
        ],
    )
    def test_a_plan_and_a_run_take_a_device_for_as_fast(self, file: str, driver: str) -> None:
        device = find_device(file)
        for precision in ("fp32", "bf16", "fp16", "fp8"):
            assert device.peak(precision) == peak_flops(driver, precision)

    def test_every_device_of_plan_is_held_to_the_drivers_name(self) -> None:
        assert device_names() == ["a100-40", "a100-80", "b200", "h100", "h200", "l40s", "v100"]

    def test_fp32_is_slower_than_bf16(self) -> None:
        assert all(peak.bf16_flops is None or peak.fp32_flops < peak.bf16_flops for peak in known_peaks().values())
        assert peak_flops("NVIDIA A100-SXM4-80GB", "fp32") == 19.5e12

    def test_v100_has_no_bf16(self) -> None:
        assert peak_flops("Tesla V100-SXM2-32GB", "bf16") is None
        assert peak_flops("Tesla V100-SXM2-32GB", "fp32") == 15.7e12
        assert peak_flops("Tesla V100-SXM2-32GB", "fp16") == 125e12

    @pytest.mark.parametrize(
        "name", ["cpu", "", "NVIDIA A10G", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM-64GB", "NVIDIA L40X"]
    )
    def test_unknown_devices_and_slices_have_no_peak(self, name: str) -> None:
        assert peak_flops(name, "bf16") is None
        assert peak_flops(name, "fp32") is None
