"""Each new law of `accelerate` breaks where Accelerate is patched."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.patched import judged

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(600)]
OF_TARGET = """
from seatrial.targets.accelerate.target import AccelerateTarget
adapters = AccelerateTarget().adapters()
"""
LISTED_AGAIN = """
import accelerate
prepare = accelerate.Accelerator.prepare_model
def again(self, model, *given, **options):
    model._is_accelerate_prepared = False
    return prepare(self, model, *given, **options)
accelerate.Accelerator.prepare_model = again
"""
BUFFERS_LISTED_AWAY = """
from accelerate.utils import modeling
listed = modeling.named_module_tensors
def without_buffers(module, include_buffers=True, recurse=False, remove_non_persistent=False):
    found = list(listed(module, include_buffers, recurse, remove_non_persistent))
    for part in module.modules():
        part._non_persistent_buffers_set.update(part._buffers)
    return iter(found)
modeling.named_module_tensors = without_buffers
"""
PART_LEFT_OUT = """
from accelerate.utils import modeling
load = modeling.load_state_dict
modeling.load_state_dict = lambda file, device_map=None: {
    name: value for name, value in load(file, device_map).items() if name != "last.weight"
}
"""
CAST = """
from accelerate import Accelerator
state = Accelerator.get_state_dict
Accelerator.get_state_dict = lambda self, model, unwrap=True: {
    name: value.half().to(value.dtype) for name, value in state(self, model, unwrap).items()
}
"""
STEP_0_LOST = """
from accelerate.tracking import CometMLTracker
log = CometMLTracker.log
CometMLTracker.log = lambda self, values, step=None, **options: log(self, values, step=step or None, **options)
"""
PREFIX_LOST = """
from accelerate.tracking import ClearMLTracker
ClearMLTracker._get_title_series = staticmethod(lambda name: (name.split("_")[-1], "train"))
"""
OPTIONS_OF_NONE = """
from accelerate import Accelerator
log = Accelerator.log
Accelerator.log = lambda self, values, step=None, log_kwargs=None: log(self, values, step)
"""
HANDLER_LOST = """
from accelerate import Accelerator
autocast = Accelerator.autocast
Accelerator.autocast = lambda self, autocast_handler=None: autocast(self)
"""
TYPES_LOST = """
from accelerate.utils import operations
operations.honor_type = lambda obj, generator: list(generator) if isinstance(obj, tuple) else type(obj)(generator)
"""
OVER_MEMORY = """
from accelerate.utils import modeling
infer = modeling.infer_auto_device_map
modeling.infer_auto_device_map = lambda model, max_memory=None, **options: infer(
    model, max_memory={key: 4 * value for key, value in max_memory.items()}, **options
)
"""
BUFFERS_OUT = """
from accelerate.utils import modeling
listed = modeling.named_module_tensors
modeling.named_module_tensors = lambda module, recurse=False, **options: listed(module, False, recurse)
"""
HALF_ON_DISK = """
from accelerate.utils import offload
read = offload.load_offloaded_weight
offload.load_offloaded_weight = lambda path, described: read(path, {**described, "dtype": described["dtype"]}).float()
"""
INDEX_FROM_0 = """
from accelerate.utils import dataclasses
dataclasses.FSDP_SHARDING_STRATEGY = ["", *dataclasses.FSDP_SHARDING_STRATEGY]
"""
ONE_SIZE_FOR_ANOTHER = """
from accelerate import parallelism_config as config
made = config.ParallelismConfig.__post_init__
def swapped(self):
    made(self)
    self.tp_size, self.cp_size = self.cp_size, self.tp_size
config.ParallelismConfig.__post_init__ = swapped
"""
FILLED_ALWAYS = """
from accelerate import data_loader
made = data_loader.BatchSamplerShard.__init__
def even(self, *given, **options):
    options["even_batches"] = True
    made(self, *given, **options)
data_loader.BatchSamplerShard.__init__ = even
"""
HOOKS_REVERSED = """
from accelerate.hooks import SequentialHook
def reversed_hooks(self, module, output):
    for hook in reversed(self.hooks):
        output = hook.post_forward(module, output)
    return output
SequentialHook.post_forward = reversed_hooks
"""
WORD_LOST = """
from accelerate.utils import launch
prepare = launch.prepare_multi_gpu_env
launch.prepare_multi_gpu_env = lambda args: {
    name: value for name, value in prepare(args).items() if name != "FSDP_RESHARD_AFTER_FORWARD"
}
"""
NORM_OF_TWO = """
from accelerate import Accelerator
clip = Accelerator.clip_grad_norm_
Accelerator.clip_grad_norm_ = lambda self, parameters, limit, norm_type=2: clip(self, parameters, limit)
"""
NEVER_SKIPPED = """
from accelerate.optimizer import AcceleratedOptimizer
AcceleratedOptimizer.step_was_skipped = property(lambda self: False)
"""
FAULTS = [
    ("worked", "R34.worked", HOOKS_REVERSED, "wrappers"),
    ("worked", "R34.worked", WORD_LOST, "commands"),
    ("worked", "R34.worked", NORM_OF_TWO, "formulas"),
    ("worked", "R34.worked", NEVER_SKIPPED, "steps"),
    ("settings", "R32.settings", INDEX_FROM_0, "read from variables"),
    ("settings", "R32.settings", ONE_SIZE_FOR_ANOTHER, "read together"),
    ("loaders-alone", "R30.rows", FILLED_ALWAYS, "every row once, uneven ends"),
    ("functions", "R32.values", TYPES_LOST, "sent to a device"),
    ("functions", "R32.values", HANDLER_LOST, "autocast of a block"),
    ("functions", "R32.sizes", OVER_MEMORY, "device maps"),
    ("functions", "R32.sizes", BUFFERS_OUT, "of modules"),
    ("functions", "R32.sizes", HALF_ON_DISK, "offloaded tensors"),
    ("tracker-comet_ml", "R30.tracked", STEP_0_LOST, "numbers at their steps"),
    ("tracker-clearml", "R30.tracked", PREFIX_LOST, "numbers at their steps"),
    ("tracker-wandb", "R30.tracked", OPTIONS_OF_NONE, "options of the client"),
    ("models", "R30.placed", BUFFERS_LISTED_AWAY, "listed: buffers"),
    ("models", "R30.placed", PART_LEFT_OUT, "saved in parts: plain"),
    ("models", "R30.placed", LISTED_AGAIN, "prepared twice"),
    ("models", "R30.placed", CAST, "prepared: plain"),
]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("adapter", "relation", "patch", "law"), FAULTS, ids=[f"{case[0]}: {case[3]}" for case in FAULTS]
)
def test_a_patched_release_breaks_the_law(
    peer_python: Callable[[str], Path], adapter: str, relation: str, patch: str, law: str
) -> None:
    """The law about the patched place is among those broken."""
    outcome, broken = judged(peer_python("trl"), [patch, OF_TARGET], adapter, relation)
    assert outcome == "Fail" and law in broken, broken


IN_PROCESSES = {
    "repeated": """
import accelerate.state as state
from contextlib import contextmanager
split = state.PartialState.split_between_processes
@contextmanager
def repeated(self, inputs, apply_padding=False):
    with split(self, inputs, apply_padding) as part:
        yield [*part, inputs[-1]] if isinstance(part, list) and len(part) < len(inputs) / self.num_processes else part
state.PartialState.split_between_processes = repeated
""",
    "halves": """
from accelerate import utils, accelerator
reduce = accelerator.reduce
accelerator.reduce = lambda tensor, reduction="mean", scale=1.0: reduce(tensor, "sum", scale)
""",
    "draws": """
from accelerate import checkpointing
import torch
keep = torch.set_rng_state
load = checkpointing.load_accelerator_state
def without_draws(*given, **options):
    before = torch.get_rng_state()
    found = load(*given, **options)
    torch.set_rng_state(before)
    return found
import accelerate.accelerator as accelerator
accelerator.load_accelerator_state = without_draws
""",
    "schedule": """
from accelerate.scheduler import AcceleratedScheduler
made = AcceleratedScheduler.__init__
def never_split(self, scheduler, optimizers, step_with_optimizer=True, split_batches=False):
    made(self, scheduler, optimizers, step_with_optimizer, False)
AcceleratedScheduler.__init__ = never_split
""",
}
"""Faults that each process imports, by name."""
WORKER = """
import runpy, sys
{patch}
from seatrial.targets.common.rank_worker import main
main()
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "adapter", "relation", "law"),
    [
        ("repeated", "splits", "R30.split", "lists"),
        ("halves", "exchanges-nested", "R30.nested", "mean"),
        ("draws", "saved-state", "R30.state", "random numbers"),
        ("schedule", "accumulation", "R30.accumulated", "learning rate, split batches"),
    ],
)
def test_a_patched_release_in_processes_breaks_the_law(
    peer_python: Callable[[str], Path], tmp_path: Path, fault: str, adapter: str, relation: str, law: str
) -> None:
    """Each process runs a worker that patches Accelerate first."""
    (tmp_path / "patched_worker.py").write_text(WORKER.format(patch=IN_PROCESSES[fault]), encoding="utf-8")
    outcome, broken = judged(
        peer_python("trl"),
        [OF_TARGET],
        adapter,
        relation,
        paths=[tmp_path],
        SEATRIAL_RANK_COMMAND="patched_worker",
    )
    assert outcome == "Fail" and law in broken, broken
