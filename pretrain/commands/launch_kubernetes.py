"""`pretrain launch kubernetes CONFIG [key=value ...] --nodes N --image IMAGE --volume CLAIM:DIR ... [--submit]`"""

import shlex

from launch.kubernetes import PodSettings, render, submit
from pretrain.commands.arguments import Parser, at_least_zero, count
from pretrain.commands.node_fields import image, namespace, node_label, pod_cpus, pod_memory, queue, volume
from pretrain.commands.nodes_options import add_nodes_options, run_of
from pretrain.commands.output import print_lines


def main(argv: list[str]) -> int:
    """Prints the Job of a run, or submits it."""
    parser = _parser()
    options = parser.parse(argv)
    run = run_of(options, options.gpus_per_node, None, f"pretrain launch kubernetes {shlex.join(argv)}")
    pods = PodSettings(
        image=options.image,
        gpus=options.gpus_per_node,
        volumes=tuple(options.volume),
        namespace=options.namespace,
        cpus=options.cpus,
        memory=options.memory,
        env=dict(options.env),
        node_selector=dict(options.node_selector),
        queue=options.queue,
        save_margin_s=options.save_margin,
    )
    text = render(run, pods)
    print_lines([submit(text)] if options.submit else text.splitlines())
    return 0


def _parser() -> Parser:
    parser = Parser(
        "launch kubernetes",
        "Prints a supervised training run as a Kubernetes Job with a pod for each node, or submits it. Each pod has a "
        "rank for each of its GPUs. The Job restarts after failures, and replaces pods that are evicted or drained.",
        (
            "gpt3/1.3b data.path=/shared/corpus run.dir=/shared/runs/big --nodes 4 --gpus-per-node 8 \\\n"
            "    --hardware h100 --image registry.example/pretrain:cuda --volume shared:/shared > job.yaml",
            "debug/gpt data.path=/shared/book run.dir=/shared/runs/book --nodes 2 --ranks-per-node 2 \\\n"
            "    --image registry.example/pretrain:cpu --volume shared:/shared --submit",
        ),
    )
    add_nodes_options(parser, pod_cpus, pod_memory)
    parser.add_argument(
        "--image", type=image, metavar="IMAGE", required=True, help="Container image with pretrain (`make image`)."
    )
    parser.add_argument(
        "--gpus-per-node", type=at_least_zero, default=0, metavar="N", help="GPUs per pod (default 0: ranks on CPUs)."
    )
    parser.add_argument(
        "--volume",
        type=volume,
        action="append",
        required=True,
        metavar="CLAIM:DIR",
        help="PersistentVolumeClaim and the path that it is mounted at; run.dir must lie on one that all nodes can "
        "write to. Repeatable.",
    )
    parser.add_argument(
        "--namespace", type=namespace, metavar="NAME", help="Namespace (default: that of kubectl's context)."
    )
    parser.add_argument(
        "--queue", type=queue, metavar="NAME", help="Local queue of Kueue, which starts all pods together."
    )
    parser.add_argument(
        "--node-selector",
        type=node_label,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Label that nodes must have. Repeatable.",
    )
    parser.add_argument(
        "--save-margin",
        type=count,
        default=300,
        metavar="N",
        help="Seconds that ranks have to save when a pod is asked to stop (default 300).",
    )
    parser.add_argument("--submit", action="store_true", help="Submit it with kubectl instead of printing it.")
    return parser
