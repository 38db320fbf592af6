"""Types of the options whose values `launch kubernetes` and `launch skypilot` write into fields of a manifest."""

import argparse
import re
from collections.abc import Callable
from pathlib import PurePosixPath

from launch.slurm.site import has_control

_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_VALUE = "[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?"
_REPOSITORY = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = rf"({_HOST}/)?{_REPOSITORY}(/{_REPOSITORY})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?"


def written(pattern: str, what: str) -> Callable[[str], str]:
    """A type of texts that match `pattern`; `what` they are, for the message."""

    def checked(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return text

    return checked


image = written(_IMAGE, "the name of an image, such as registry.example/pretrain:cuda")
namespace = written(_LABEL, "a namespace: up to 63 lower-case letters, digits and hyphens")
queue = written(rf"(?=.{{1,63}}$){_DNS_NAME}", "a name of Kubernetes: up to 63 lower-case letters, digits and hyphens")
infra = written(r"[A-Za-z0-9*][\w.@:*-]*(/[\w.@:*-]+)*", "a cloud, region or context, such as aws/us-east-1")
accelerators = written(
    r"[A-Za-z][A-Za-z0-9_.-]*(:0*[1-9][0-9]{0,2})?", "a kind of GPUs and their number per node, such as H100:8"
)
_ABOVE_ZERO = r"(?=[^1-9]*[1-9])"
pod_cpus = written(rf"{_ABOVE_ZERO}[0-9]{{1,9}}(\.[0-9]{{1,3}}|m)?", "CPUs as Kubernetes counts them, such as 64")
pod_memory = written(
    rf"{_ABOVE_ZERO}[0-9]{{1,12}}(\.[0-9]{{1,3}})?([MGT]i?)", "a size as Kubernetes has it, such as 900Gi"
)
task_cpus = written(rf"{_ABOVE_ZERO}[0-9]{{1,9}}(\.[0-9]+)?\+?", "CPUs as SkyPilot counts them, such as 64 or 64+")
task_memory = written(
    rf"{_ABOVE_ZERO}[0-9]{{1,12}}(\.[0-9]+)?([GT]B)?\+?", "a size as SkyPilot has it, in GB, such as 900 or 900+"
)


def volume(text: str) -> tuple[str, str]:
    """A volume and the absolute path that it is mounted at."""
    name, _, path = text.partition(":")
    if len(name) > 253 or re.fullmatch(_DNS_NAME, name) is None or not is_mount_path(path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:DIR, such as shared:/shared")
    return name, path


def is_mount_path(path: str) -> bool:
    """Whether a volume can be mounted there: an absolute path below the root, without `:` and `..`."""
    parts = PurePosixPath(path).parts
    return path.startswith("/") and len(parts) > 1 and ".." not in parts and ":" not in path and not has_control(path)


def node_label(text: str) -> tuple[str, str]:
    """Name and value of a label of nodes, such as nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3."""
    name, equals, value = text.partition("=")
    if not equals or re.fullmatch(rf"({_DNS_NAME}/)?{_LABEL_VALUE}", name) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE with a name of a label, such as gpu=h100")
    if re.fullmatch(f"({_LABEL_VALUE})?", value) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: a label's value has up to 63 letters, digits, hyphens, underscores and dots"
        )
    return name, value


def variable(text: str) -> tuple[str, str]:
    """Name and value of an environment variable that the manifest does not set itself."""
    name, equals, value = text.partition("=")
    if not equals or re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    if re.fullmatch("NODE_(JOB|INDEX|ADDRESS)|SKYPILOT_.*", name):
        raise argparse.ArgumentTypeError(f"{name} is set for each node: leave it out")
    if has_control(value):
        raise argparse.ArgumentTypeError(f"{text!r}: a line break cannot be in a variable: remove it")
    return name, value
