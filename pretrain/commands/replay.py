"""`pretrain replay RUN --step N [--layout NAME] [--from-start]`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, count
from pretrain.commands.local_ranks import needs_local_ranks, start_local_ranks, under_launcher
from pretrain.commands.output import print_lines
from pretrain.config.load import validate
from pretrain.config.patterns.function import recorded_config
from pretrain.config.run_config import RunConfig
from pretrain.data.consumed import config_of_run
from pretrain.data.resolve import resolve
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, settings_on
from pretrain.layout.names import parse_layout
from pretrain.process.ranks import global_rank, world_size
from pretrain.process.signals import StopRequest
from pretrain.run_dir.paths import RunDir, checkpoint_step, complete_checkpoints
from pretrain.run_dir.records import read_events, read_metrics


def main(argv: list[str]) -> int:
    """Returns 0 if the steps up to one come out as the run has recorded them, 1 if not. Raises ConfigError for a step
    that cannot be computed again."""
    stop = StopRequest()
    parser = Parser(
        "replay",
        "Computes a step of a run again, from the checkpoint before it, and says whether it comes out the same: then a "
        "bad step is due to its data or settings, otherwise to a machine. Writes nothing. Exits with 1 if it differs.",
        ("runs/book --step 190", "runs/book --step 190 --layout tp2dp2"),
    )
    parser.add_argument("run", type=Path, help="Run directory.")
    parser.add_argument("--step", type=count, required=True, help="Optimizer step, counting from 1.")
    parser.add_argument(
        "--layout",
        metavar="NAME",
        help="Layout to compute on, such as tp2pp2dp2; as many local ranks are started (default: that of the run at "
        "this step, on which bits are compared).",
    )
    parser.add_argument(
        "--from-start", action="store_true", help="Compute all steps from the run's beginning, without a checkpoint."
    )
    options = parser.parse(argv)
    config, layouts, step = config_of_run(options.run), _Layouts(options.run), options.step
    recorded = {line["step"] for line in read_metrics(options.run)}
    checkpoints = [] if options.from_start else _checkpoints(options.run, step, recorded)
    if step not in recorded:
        raise ConfigError(f"{options.run} has no step {step:,}: its metrics.jsonl has {_range(recorded)}")
    layout = parse_layout(layouts.of(step) if options.layout is None else options.layout, 0)
    config = _on_layout(config, layout, options.run)
    if needs_local_ranks(config, None if under_launcher() else layout.world, trains=True):
        return start_local_ranks(layout.world, ["replay", *argv], stop)
    if world_size() != layout.world:
        raise ConfigError(f"{layout} is for {layout.world:,} ranks, and the launcher has started {world_size():,}")
    from pretrain.training.replay import replay
    from pretrain.verify.compare import RecordedRun, compare_again
    from pretrain.verify.compare_report import replayed

    start, computed = replay(config, checkpoints, step, stop)
    exact = all(layouts.of(one) == str(layout) for one in computed) and _repeats_bits(config)
    run = RecordedRun.read(options.run)
    quantities = compare_again(run, computed, start, exact)
    if global_rank() == 0:
        rounded = compare_again(run, computed, start, exact=False)
        print_lines(replayed(run, computed, start, str(layout), quantities=quantities, rounded=rounded))
    return 0 if all(quantity.first is None for quantity in quantities) else 1


class _Layouts:
    """The layouts that a run has been on."""

    def __init__(self, run: Path) -> None:
        self._starts = [
            (event.get("step", 0), event.get("layout") or event["continued_on"])
            for event in read_events(run)
            if event["event"] in ("started", "resumed")
        ]
        if not self._starts:
            raise ConfigError(f"{run} has no event of its start in events.jsonl")

    def of(self, step: int) -> str:
        """The one on which a step was made: after a crash, a later start has made it again."""
        return str(next((layout for start, layout in reversed(self._starts) if start < step), self._starts[0][1]))


def _checkpoints(run: Path, step: int, recorded: set[int]) -> list[Path]:
    """Checkpoints before a step, newest first. Raises ConfigError if there is none."""
    complete = complete_checkpoints(RunDir(run).checkpoints)
    before = [path for path in complete if (checkpoint_step(path.name) or 0) < step]
    if before:
        return before[::-1]
    first = min((checkpoint_step(path.name) or 0 for path in complete), default=None)
    later = {one for one in recorded if first is not None and one > first}
    can = f"checkpoints lead to {_range(later)}, and " if later else "there is no checkpoint to start from; "
    raise ConfigError(f"{run}: {can}--from-start computes all steps from the beginning of the run")


def _range(steps: set[int]) -> str:
    return f"steps {min(steps):,} to {max(steps):,}" if steps else "no step"


def _on_layout(config: RunConfig, layout: Layout, run: Path) -> RunConfig:
    """The config of a run for another layout and, as runs may be moved, in its directory."""
    tree = config.model_dump(mode="json")
    tree["parallel"] = settings_on(config.parallel, layout)
    tree["run"]["dir"] = str(run)
    with recorded_config():
        return resolve(validate(RunConfig, tree, str(RunDir(run).config)))


def _repeats_bits(config: RunConfig) -> bool:
    """Whether the same step gives the same bits on the machines at hand."""
    import torch

    return config.run.deterministic or not torch.cuda.is_available()
