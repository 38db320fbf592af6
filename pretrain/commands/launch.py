"""`pretrain launch slurm|build|local|kubernetes|skypilot|status|logs|cancel`"""

from pretrain.commands.dispatch import dispatch

_MODULES = {
    "slurm": "launch_slurm",
    "build": "launch_build",
    "local": "launch_local",
    "kubernetes": "launch_kubernetes",
    "skypilot": "launch_skypilot",
    "status": "launch_status",
    "logs": "launch_logs",
    "cancel": "launch_cancel",
}
"""verb -> file in `commands/`"""


def main(argv: list[str]) -> int:
    """Supervised runs: restarted after failures, requeued after time limits."""
    return dispatch(
        "launch",
        _MODULES,
        argv,
        description=(
            "Starts supervised runs on a Slurm cluster, on Kubernetes, through SkyPilot or on this machine, restarts "
            "them from the newest checkpoint after each failure, and shows their status."
        ),
        examples=(
            "slurm gpt3/1.3b data.path=/data/corpus run.dir=/runs/big --nodes 4 --gpus-per-node 8 --hardware h100",
            "build data/gpt3-mix executor=ray --nodes 16 --cluster site.yaml",
            "local debug/gpt data.path=datasets/book run.dir=runs/book --nproc 4",
            "status runs/book",
            "logs runs/book --follow",
            "cancel runs/book",
        ),
    )
