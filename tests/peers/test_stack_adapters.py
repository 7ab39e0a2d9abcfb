"""Adapters of verl, OpenRLHF and TransferQueue hold on a release, and each law breaks where the stack is patched."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.making import PEERS
from tests.peers.patched import judged
from tests.peers.wild.runner import layer

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(900)]
SELECTED = """
from verl.utils import tensordict_utils
select_rows = tensordict_utils.index_select_tensor_dict
def lists_stay(batch, indices):
    found = select_rows(batch, indices)
    for name in ("text", "list"):
        if name in found.keys():
            found[name] = batch[name]
    return found
tensordict_utils.index_select_tensor_dict = lists_stay
"""
CHUNKED = """
from verl.utils import tensordict_utils
chunk = tensordict_utils.chunk_tensordict
def moved(batch, chunks):
    parts = chunk(batch, chunks)
    for one, other in zip(parts, [*parts[1:], parts[0]]):
        one["reward"] = other["reward"].clone()
    return parts
tensordict_utils.chunk_tensordict = moved
"""
PUT_BACK = """
from verl.utils import seqlen_balancing
seqlen_balancing.get_reverse_idx = lambda places: list(range(len(places)))
"""
ENTROPY = """
from verl.workers.utils import losses
aggregate = losses.agg_loss
losses.agg_loss = lambda **options: aggregate(**options) * (2 if (options["loss_mat"] >= 0).all() else 1)
"""
OWN_TOKENS = """
from verl.workers.utils import losses
aggregate = losses.agg_loss
def local(**options):
    return aggregate(**{**options, "batch_num_tokens": options["loss_mask"].sum()})
losses.agg_loss = local
"""
ROLLED = """
from verl.workers.engine.fsdp import transformer_impl
logprobs = transformer_impl.logprobs_from_logits
def other_labels(logits, labels, inplace_backward=True):
    return logprobs(logits=logits, labels=torch.roll(labels, 1, dims=0), inplace_backward=inplace_backward)
transformer_impl.logprobs_from_logits = other_labels
"""
UNSORTED = """
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine import utils
utils.restore_dynamic_batch = lambda tensor, places: tensor
"""
MASK = """
from verl.workers.utils import losses
shift = torch.roll
losses.torch = type("Unrolled", (), {"roll": staticmethod(lambda values, **_: values)})
"""
WARM_UP = """
from verl.utils import torch_functional
cosine = torch_functional.get_cosine_schedule_with_warmup
torch_functional.get_cosine_schedule_with_warmup = (
    lambda optimizer, num_warmup_steps, **options: cosine(optimizer, 0, **options)
)
"""
ENDS = """
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
process = MultiTurnSFTDataset._process_single_message
def without_end(self, *args, **options):
    ids, mask, *rest = process(self, *args, **options)
    mask[-1] = 0
    return ids, mask, *rest
MultiTurnSFTDataset._process_single_message = without_end
"""
EVERYONE = """
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
process = MultiTurnSFTDataset._process_single_message
def of_all(self, *args, **options):
    ids, mask, *rest = process(self, *args, **options)
    return ids, torch.ones_like(mask), *rest
MultiTurnSFTDataset._process_single_message = of_all
"""
LENGTHS = """
from verl.trainer.ppo import metric_utils
metric_utils._compute_response_info = lambda batch: {
    "prompt_length": batch.batch["attention_mask"].sum(-1).float(),
    "response_length": batch.batch["response_mask"].sum(-1).float(),
}
"""
POOLED = """
from verl.trainer.ppo import metric_utils
process = metric_utils.process_validation_metrics
metric_utils.process_validation_metrics = lambda sources, *more, **options: process(
    [sources[0]] * len(sources), *more, **options
)
"""
OVERLONG = """
from verl.experimental.reward_loop.reward_manager import dapo
run = dapo.DAPORewardManager.run_single
async def without_penalty(self, data):
    self.overlong_buffer_cfg = None
    return await run(self, data)
dapo.DAPORewardManager.run_single = without_penalty
"""
KL = """
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.verl.estimators import UNUSED
trainer = import_without("verl.trainer.ppo.ray_trainer", UNUSED)
mean = trainer.masked_mean
trainer.masked_mean = lambda values, mask, axis=None: values.mean(axis)
"""
INDEX = """
from seatrial.targets.openrlhf.parts import part
maker = part("trainer.ppo_utils.experience_maker").RemoteExperienceMaker
compute = maker.compute_advantages_and_returns
import functools
@functools.wraps(compute)
def in_order(self, experiences):
    places = sorted(place for one in experiences for place in one.index)
    for one in experiences:
        one.index, places = places[: len(one.index)], places[len(one.index) :]
    return compute(self, experiences)
maker.compute_advantages_and_returns = in_order
"""
FACTOR = """
from seatrial.targets.openrlhf.parts import part
utils = part("models.utils")
estimate = utils.compute_approx_kl
utils.compute_approx_kl = lambda *a, **k: 2 * estimate(*a, **k)
"""
RANK_MEAN = """
from seatrial.targets.openrlhf.losses import loss_module
module = loss_module()
aggregate = module.aggregate_loss
module.aggregate_loss = lambda *a, **options: aggregate(
    *a, **{**options, "batch_num_tokens": None, "global_batch_size": None}
)
"""
REORDERED = """
from transfer_queue import metadata
reorder = metadata.BatchMeta.reorder
def without_metadata(self, indices):
    kept = self.custom_meta
    reorder(self, indices)
    self.custom_meta = kept
metadata.BatchMeta.reorder = without_metadata
"""
VERL, OPENRLHF, QUEUE = "verl==0.9.1", "openrlhf==0.11.2", "TransferQueue==0.1.11"
FAULTS = [
    (VERL, "verl.tensordicts", "tables-tensordict", "R5.tables", SELECTED, "rows at places"),
    (VERL, "verl.tensordicts", "tables-nested", "R5.tables", CHUNKED, "equal parts"),
    (VERL, "verl.tensordicts", "tables-items", "R5.tables", PUT_BACK, "rows put back"),
    (VERL, "verl.actors", "loss-of-engine", "R12.loss", ENTROPY, "loss value"),
    (
        VERL,
        "verl.actors",
        "metrics-of-engine",
        "R22.named",
        OWN_TOKENS,
        "means and sums, ranks of unequal numbers of tokens",
    ),
    (VERL, "verl.engines", "engine-supervised", "R12.objective", ROLLED, "gradient, lengths unequal"),
    (VERL, "verl.engines", "engine-supervised", "R12.objective", MASK, "gradient, lengths unequal"),
    (VERL, "verl.engines", "engine-dynamic", "R5.policy", UNSORTED, "reordered rows"),
    (VERL, "verl.schedules", "schedules", "R24.schedules", WARM_UP, "with a warm-up"),
    (VERL, "verl.schedules", "schedules-of-engine", "R24.schedules", WARM_UP, "with a warm-up"),
    (
        VERL,
        "verl.conversations",
        "conversations",
        "R16.conversations",
        ENDS,
        "answers alone train, several answers",
    ),
    (
        VERL,
        "verl.conversations",
        "conversations-unpadded",
        "R16.conversations",
        EVERYONE,
        "answers alone train, several answers",
    ),
    (VERL, "verl.scalars", "data-metrics", "R22.named", LENGTHS, "means and sums, tool output inside"),
    (VERL, "verl.scalars", "validation-metrics", "R22.validation", POOLED, "means and deviations"),
    (VERL, "verl.reward_loop", "reward-loop-dapo", "R17.reward", OVERLONG, "reward of each answer"),
    (VERL, "verl.reward_loop", "kl-in-reward", "R22.named", KL, "means and sums, lengths unequal"),
    (
        OPENRLHF,
        "openrlhf.algorithms",
        "estimator-group_norm",
        "R12.estimator",
        INDEX,
        "advantages of outcomes",
    ),
    (OPENRLHF, "openrlhf.algorithms", "kl", "R12.kl", FACTOR, "value and gradient of each estimator"),
    (
        OPENRLHF,
        "openrlhf.losses",
        "ppo-loss-of-rows",
        "R2.ranked_loss",
        RANK_MEAN,
        "ranks of unequal numbers of rows",
    ),
    (QUEUE, "transfer_queue.tables", "tables", "R5.tables", REORDERED, "rows put back"),
]


def judged_in(
    python: Path, release: str, module: str, adapter: str, relation: str, fault: str = ""
) -> tuple[str, list[str]]:
    """Judge a relation on a release, which the fault patches; return its outcome and the laws broken."""
    names = f"import torch\nfrom seatrial.targets.{module} import ADAPTERS as adapters"
    places = [layer(python, PEERS / "layers", [release])]
    return judged(python, [names, fault], adapter, relation, seeds=(0, 1, 2), paths=places)


BY_DAY = {case[0]: case for case in reversed(FAULTS)}
"""The first case of each stack."""
CASES = [
    case
    for _, module, adapter, relation, fault, law in BY_DAY.values()
    for case in ((module, adapter, relation, "", ""), (module, adapter, relation, fault, law))
]


@pytest.mark.parametrize(("module", "adapter", "relation", "fault", "law"), CASES)
def test_a_law_of_each_stack_holds_and_breaks(
    peer_python: Callable[[str], Path],
    module: str,
    adapter: str,
    relation: str,
    fault: str,
    law: str,
) -> None:
    """Over the environment of the data planes, which has TransferQueue; all cases run at night."""
    python = peer_python("data_plane")
    names = f"import torch\nfrom seatrial.targets.{module} import ADAPTERS as adapters"
    places = [layer(python, PEERS / "layers", [VERL, OPENRLHF, "codetiming==1.4.0"])]
    outcome, broken = judged(python, [names, fault], adapter, relation, paths=places)
    assert outcome == ("Fail" if fault else "Pass")
    assert law in [*broken, ""]


@pytest.mark.nightly
@pytest.mark.parametrize(("release", "module", "adapter", "relation", "fault", "law"), FAULTS)
def test_a_patched_release_breaks_the_law(
    peer_python: Callable[[str], Path],
    release: str,
    module: str,
    adapter: str,
    relation: str,
    fault: str,
    law: str,
) -> None:
    """Each fault is of one place of the stack."""
    outcome, broken = judged_in(peer_python("wild"), release, module, adapter, relation, fault)
    assert outcome == "Fail"
    assert law in broken


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("release", "module", "adapter", "relation"),
    sorted({(release, module, adapter, relation) for release, module, adapter, relation, *_ in FAULTS}),
)
def test_the_release_as_it_is_holds(
    peer_python: Callable[[str], Path], release: str, module: str, adapter: str, relation: str
) -> None:
    """Nothing is broken but what is declared."""
    outcome, broken = judged_in(peer_python("wild"), release, module, adapter, relation)
    assert outcome in ("Pass", "Skipped")
    assert not broken
