"""Whether a run that could fit on its devices does, activations included, and the nearest layout that does if not."""

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.plan.device import find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import constants
from pretrain.plan.estimate.held import held_bytes
from pretrain.plan.search import every_choice

_GIB = 2**30
_ANY = "h100"  # what is held does not depend on how fast a device is
_NODE = 8


def check_holds(config: RunConfig, layout: Layout, own_bytes: float) -> None:
    """Raises ConfigError if what is counted of a rank (`HeldBytes`, without what libraries and the allocator take) is
    more than the `own_bytes` of a device: naming the largest part, and of as many ranks the layout that fits with the
    fewest changes, and of several such that which holds most."""
    builder = WorkloadBuilder(config, find_device(_ANY), _NODE)
    own = LayoutChoice(layout, config.batch.micro_sequences, config.parallel.recompute)
    held = held_bytes(builder.build([own]), constants(), overhead=False)
    if held.fullest[0] <= own_bytes:
        return
    stage = int(held.total[0].argmax())
    sizes = {name: float(getattr(held, name)[0, stage]) for name in held.__dataclass_fields__}
    largest = max(sizes, key=lambda name: sizes[name])
    shares = ", ".join(f"{name} {size / _GIB:,.1f}" for name, size in sizes.items() if size > 0.01 * held.fullest[0])
    raise ConfigError(
        f"this run does not fit in memory: {layout} holds {held.fullest[0] / _GIB:,.1f} GiB on its fullest rank "
        f"({shares}), most of it {largest}, of {own_bytes / _GIB:,.1f}; {_nearest(config, builder, own, own_bytes)}"
    )


def _nearest(config: RunConfig, builder: WorkloadBuilder, own: LayoutChoice, own_bytes: float) -> str:
    choices = list(every_choice(config, own.layout.world, _NODE))
    if not choices:
        return "use more devices, or a smaller model"
    held = held_bytes(builder.build(choices), constants()).fullest
    fitting = [i for i in range(len(choices)) if held[i] <= own_bytes]
    if not fitting:
        return "no layout of as many devices does: use more, or a smaller model"
    found = choices[min(fitting, key=lambda i: (len(_changes(own, choices[i])), -held[i]))]
    return f"the nearest that does: {' '.join(_changes(own, found))}"


def _changes(own: LayoutChoice, other: LayoutChoice) -> list[str]:
    """Settings that turn one layout into the other."""
    said = []
    for name in ("tensor", "context", "sequence", "pipeline", "virtual", "zero"):
        if getattr(own.layout, name) != (value := getattr(other.layout, name)):
            said.append(f"parallel.{name}={str(value).lower()}")
    if own.layout.shards_by_deepspeed != other.layout.shards_by_deepspeed:
        said.append(f"parallel.zero_engine={other.layout.zero_engine}")
    if own.recompute != other.recompute:
        said.append(f"parallel.recompute={other.recompute}")
    if own.micro_sequences != other.micro_sequences:
        said.append(f"batch.micro_sequences={other.micro_sequences}")
    return said
