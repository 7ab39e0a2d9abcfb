"""Worked examples of the versions of verl's asynchronous trainers: those that are saved, loaded again and switched."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from seatrial.targets.common.offered import undecorated
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.asynchronous import stack_module
from seatrial.targets.verl.worked.asynchronous import made_part, quiet
from seatrial.targets.verl.worked.tools import folder, raised

ANY = "verl:DataProto"
SWITCHES = "verl.trainer.config.config:HybridRolloutSwitchConfig"
USED = [round(52 / 60, 5), [(10.0, 2, 4)], 0.0, [(10.0, 2, 4)], 1.0, [(10.0, 2, 4)]]


class _Trainer(SimpleNamespace):
    """Options of a trainer, some of which are read by `get`."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return an option."""
        return getattr(self, name, default)


def _options(root: Path, **more: Any) -> Any:
    given = {
        "default_local_dir": str(root),
        "default_hdfs_dir": None,
        "resume_mode": "auto",
        "resume_from_path": None,
        "del_local_ckpt_after_load": False,
        **more,
    }
    return SimpleNamespace(
        trainer=_Trainer(**given), async_training=SimpleNamespace(trigger_parameter_sync_step=3)
    )


class _Group:
    """Workers that keep where they save and load."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[Any] = []

    def save_checkpoint(self, local: str, remote: Any, step: int, max_ckpt_to_keep: Any = None) -> None:
        """Keep the path."""
        Path(local).mkdir(parents=True)
        self.calls.append(["saved", str(Path(local).relative_to(self.root)), remote, step, max_ckpt_to_keep])

    def load_checkpoint(self, local: str, del_local_after_load: bool = False) -> None:
        """Keep the path."""
        self.calls.append(["loaded", str(Path(local).relative_to(self.root)), del_local_after_load])


def _kept(of: Any) -> dict[str, Any]:
    """Return what is saved of a version, by actors, critics and the rollouter, and what is loaded again."""
    import ray

    root = folder()
    actors, critics = _Group(root), _Group(root)
    kept: list[str] = []
    rollouter = SimpleNamespace(
        save_checkpoint=SimpleNamespace(remote=lambda path: kept.append(str(Path(path).relative_to(root))))
    )
    parts = {"actor_rollout_wg": actors, "critic_wg": critics, "use_critic": True, "rollouter": rollouter}
    remote = {"default_hdfs_dir": "hdfs://x", "max_actor_ckpt_to_keep": 2, "max_critic_ckpt_to_keep": 5}
    saving = made_part("FullyAsyncTrainer", current_param_version=4, config=_options(root, **remote), **parts)
    get = ray.get
    try:
        ray.get = lambda value: value
        quiet(saving._save_checkpoint)
        saving.current_param_version = 7
        saving.config = _options(root, remove_previous_ckpt_in_save=True, max_actor_ckpt_to_keep=9)
        quiet(saving._save_checkpoint)
    finally:
        ray.get = get
    saved = [list(actors.calls), list(critics.calls), kept]
    loaded = {}
    for name, options in (
        ("auto", {}),
        ("disable", {"resume_mode": "disable"}),
        ("path", {"resume_mode": "resume_path", "resume_from_path": str(root / "global_step_4")}),
    ):
        actors.calls.clear()
        one = made_part(
            "FullyAsyncTrainer",
            config=_options(root, del_local_ckpt_after_load=True, **options),
            trigger_parameter_sync_step=3,
            global_steps=0,
            current_param_version=0,
            last_ckpt_version=0,
            **parts,
        )
        loaded[name] = [
            quiet(one.load_checkpoint),
            one.current_param_version,
            one.global_steps,
            one.last_ckpt_version,
            list(actors.calls),
        ]
    none = made_part("FullyAsyncTrainer", config=_options(folder()), trigger_parameter_sync_step=3, **parts)
    return {
        "saved": saved,
        "latest": (root / "latest_checkpointed_iteration.txt").read_text(),
        "loaded": loaded,
        "none": quiet(none.load_checkpoint),
    }


def _loaded(step: int) -> list[Any]:
    return [step, step, 3 * step + 1, step, [["loaded", f"global_step_{step}/actor", True]]]


KEPT: Mapping[str, Any] = {
    "saved": [
        [
            ["saved", "global_step_4/actor", "hdfs://x/global_step_4/actor", 4, 2],
            ["saved", "global_step_7/actor", None, 7, 1],
        ],
        [
            ["saved", "global_step_4/critic", "hdfs://x/global_step_4/critic", 4, 5],
            ["saved", "global_step_7/critic", None, 7, 1],
        ],
        ["global_step_4", "global_step_7"],
    ],
    "latest": "7",
    "loaded": {"auto": _loaded(7), "disable": [0, 0, 0, 0, []], "path": _loaded(4)},
    "none": 0,
}


def _resumed(of: Any) -> dict[str, Any]:
    """Return the next sample of a rollouter: after those of all versions; and the state of its loader."""
    root = folder()
    states: list[Any] = []
    loader = SimpleNamespace(state_dict=lambda: {"place": 5}, load_state_dict=states.append)
    parts = {"train_dataloader": loader, "required_samples": 4, "global_steps": 1}

    def rollouter(**options: Any) -> Any:
        return made_part("FullyAsyncRollouter", config=_options(root, **options), **parts)

    async def saved() -> None:
        one = rollouter()
        one.dataloader_lock = asyncio.Lock()
        await one.save_checkpoint(str(root / "global_step_5"))

    with contextlib.redirect_stdout(io.StringIO()):
        asyncio.run(saved())
    (root / "latest_checkpointed_iteration.txt").write_text("5")
    found = {}
    for name, options in (
        ("auto", {}),
        ("disable", {"resume_mode": "disable"}),
        ("path", {"resume_mode": "resume_path", "resume_from_path": str(root / "global_step_5")}),
    ):
        one = rollouter(**options)
        quiet(one.load_checkpoint)
        found[name] = one.global_steps
    wrong = [rollouter(resume_mode="none"), rollouter(default_hdfs_dir="hdfs://x")]
    wrong.append(rollouter(resume_mode="resume_path", resume_from_path=str(root)))
    return {**found, "states": states, "refused": [raised(one.load_checkpoint) for one in wrong]}


def _separate(**parts: Any) -> Any:
    """Return a trainer whose engines train or sample, with some of its parts."""
    trainer = undecorated(stack_module("verl.trainer.ppo.v1.trainer_separate_async").PPOTrainerSeparateAsync)
    made = object.__new__(trainer)
    vars(made).update(parts)
    return made


def _switching(config_class: Any, **options: Any) -> Any:
    return config_class(**{"enable_switch": True, **options})


def _thresholds(config: Any) -> dict[str, Any]:
    """Return how many groups have to be there, and how steps with and without a wait move the share of them."""
    data = SimpleNamespace(data=SimpleNamespace(train_batch_size=20))
    bounds = [
        _separate(config=data, parameter_sync_step=4, _switch_threshold_ratio=ratio)._switch_threshold()
        for ratio in (0.1, 0.5, 0.62, 1.0)
    ]
    trainer = _separate(
        hybrid_rollout_config=_switching(
            config,
            switch_threshold_step_up=0.25,
            switch_threshold_step_down=0.125,
            switch_threshold_release_steps=2,
        ),
        parameter_sync_step=2,
        _switch_threshold_ratio=0.625,
        _idle_steps=0,
        _calm_steps=0,
    )
    moved = []
    for idle in (True, True, True, True, False, False, False, True, False, False, False, False, False):
        trainer._adapt_switch_threshold(idle)
        moved.append(trainer._switch_threshold_ratio)
    waits = [
        _separate(_step_sample_wait_seconds=seconds, replay_buffer=SimpleNamespace(**own))._step_had_idle()
        for seconds, own in ((2.0, {}), (2.5, {}), (2.5, {"poll_interval": 3.0}))
    ]
    costs = [
        _separate(_to_rollout_costs=one, _to_trainer_costs=other)._effective_switch_cost()
        for one, other in (([1.0, 2.0], [4.0]), ([], [4.0]), ([1.0], []))
    ]
    refused = [
        raised(config, **options)
        for options in (
            {"switch_threshold_ratio": 0.0},
            {"switch_threshold_ratio": 1.1},
            {"switch_threshold_ratio": 1.0},
            {"switch_cost_window_size": 0},
        )
    ]
    return {"bounds": bounds, "moved": moved, "waits": waits, "costs": costs, "refused": refused}


THRESHOLDS: Mapping[str, Any] = {
    "bounds": [5, 10, 12, 20],
    "moved": [0.625, 0.875, 1.0, 1.0, 1.0, 0.875, 0.75, 0.75, 0.75, 0.625, 0.5, 0.5, 0.5],
    "waits": [False, True, False],
    "costs": [5.5, None, None],
    "refused": ["ValueError", "ValueError", "nothing", "ValueError"],
}


class _Managers:
    """Calls of managers of weights and of a balancer, in their order."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def named(self, name: str, *methods: str, **results: Any) -> Any:
        """Return a manager whose calls are kept."""

        def method(own: str) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                self.calls.append([name, own, *arguments, *([options] if options else [])])
                return results.get(own)

            return call

        return SimpleNamespace(**{own: method(own) for own in methods})


def _decided(config: Any) -> list[Any]:
    """Return what happens after a step: engines sample if the wait for what is missing costs more than the switch."""
    found = []
    for sampleable, costs, step, adaptive in (
        (2, ([1.0], [1.0]), 3, False),
        (2, ([9.0], [9.0]), 3, False),
        (2, ([], []), 3, False),
        (10, ([], []), 3, False),
        (2, ([], []), 9, False),
    ):
        managers = _Managers()
        trainer = _separate(
            prev_step_profile=False,
            hybrid_rollout_config=_switching(config, adaptive_switch_threshold=adaptive),
            config=SimpleNamespace(data=SimpleNamespace(train_batch_size=20)),
            parameter_sync_step=4,
            _switch_threshold_ratio=0.5,
            _step_sample_wait_seconds=6.0,
            _step_wait_samples=3,
            _wait_seconds=2.0,
            _wait_samples=1,
            _to_rollout_costs=list(costs[0]),
            _to_trainer_costs=list(costs[1]),
            _scaling_factor=2.0,
            global_steps=step,
            total_training_steps=9,
            timing_raw={},
            replay_buffer=SimpleNamespace(
                get_sampleable_count=lambda step, partition, count=sampleable: count, poll_interval=2.0
            ),
            standalone_checkpoint_manager=managers.named("standalone", "update_weights"),
        )
        for name in ("add_replicas_to_balancer", "clear_sticky_cache", "switch_to_rollout"):
            setattr(trainer, name, getattr(managers.named("trainer", name), name))
        quiet(trainer.on_step_end)
        logged = trainer._pending_sync_metrics
        names = ("remaining", "per_sample_time_seconds", "should_switch_to_rollout")
        found.append(
            [
                [call[1:] for call in managers.calls],
                [logged[f"separate_async/decision/{name}"] for name in names],
                len(trainer._to_rollout_costs) - len(costs[0]),
            ]
        )
    return found


def _switched(step: int, remaining: float, on: bool) -> list[Any]:
    calls: list[Any] = [["update_weights", step]]
    if on:
        calls = [["add_replicas_to_balancer"], ["clear_sticky_cache"], *calls]
        calls.append(["switch_to_rollout", {"already_registered": True}])
    return [calls, [remaining, 2.0, float(on)], int(on)]


# Ten groups are due. Two are there, and each of the eight takes 2 s, half of which the engines would save: 8 s.
DECIDED = [
    _switched(3, 8.0, True),
    _switched(3, 8.0, False),
    _switched(3, 8.0, True),
    _switched(3, 0.0, False),
    _switched(9, 8.0, False),
]


def _switches(config: Any) -> list[Any]:
    """Return what is asked for in which order when engines begin to sample, and to train again."""
    managers = _Managers()
    modes = stack_module("verl.trainer.ppo.v1.trainer_separate_async").HybridEngineMode
    trainer = _separate(
        _enable_hybrid_replicas=True,
        global_steps=4,
        current_mode=modes.TRAINER,
        checkpoint_manager=managers.named(
            "hybrid", "update_weights", "resume_generation_replicas", "abort_replicas", "sleep_replicas"
        ),
    )
    for name in ("add_replicas_to_balancer", "remove_replicas_from_balancer"):
        setattr(trainer, name, getattr(managers.named("trainer", name), name))
    found = []
    for call, options in (
        ("switch_to_rollout", {}),
        ("switch_to_trainer", {}),
        ("switch_to_rollout", {"already_registered": True}),
    ):
        managers.calls.clear()
        quiet(getattr(trainer, call), **options)
        found.append([[own[1:] for own in managers.calls], trainer.current_mode.value])
    managers.calls.clear()
    trainer._enable_hybrid_replicas = False
    quiet(trainer.switch_to_trainer)
    return [*found, [list(managers.calls), trainer.current_mode.value]]


ROWS: Sequence[Row] = (
    Row("asynchronous", ANY, "checkpoints of a fully asynchronous trainer", _kept, KEPT, since="0.8"),
    Row(
        "asynchronous",
        ANY,
        "checkpoints of a rollouter",
        _resumed,
        {
            "auto": 61,
            "disable": 1,
            "path": 61,
            "states": [{"place": 5}] * 2,
            "refused": ["ValueError", "NotImplementedError", "AssertionError"],
        },
        since="0.4",
    ),
    Row("asynchronous", SWITCHES, "thresholds of a switch", _thresholds, THRESHOLDS, since="0.4"),
    Row("asynchronous", SWITCHES, "switches after a step", _decided, DECIDED, since="0.4"),
    Row(
        "asynchronous",
        SWITCHES,
        "switches in their order",
        _switches,
        [
            [
                [["update_weights", 4], ["resume_generation_replicas"], ["add_replicas_to_balancer"]],
                "rollout",
            ],
            [
                [
                    ["remove_replicas_from_balancer"],
                    ["abort_replicas", {"reject_request": True}],
                    ["sleep_replicas"],
                ],
                "trainer",
            ],
            [[["update_weights", 4], ["resume_generation_replicas"]], "rollout"],
            [[], "rollout"],
        ],
        since="0.4",
    ),
)
