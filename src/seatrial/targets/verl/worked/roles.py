"""Worked examples of the parts that verl's trainer chooses by options: roles, rewards, callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.worked.logged import batch_of
from seatrial.targets.verl.worked.tools import folder, raised


def _needs(need: Callable[..., Any]) -> list[bool]:
    """Return whether a critic is part of a run: if that is said, and else for advantages by GAE."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            need(
                SimpleNamespace(
                    critic=SimpleNamespace(enable=on), algorithm=SimpleNamespace(adv_estimator=kind)
                )
            )
            for on, kind in ((True, "grpo"), (False, "gae"), (None, "gae"), (None, "grpo"))
        ]


def _references(need: Callable[..., Any]) -> list[bool]:
    return [
        bool(
            need(
                SimpleNamespace(
                    algorithm={"use_kl_in_reward": reward} if reward is not None else {},
                    actor_rollout_ref=SimpleNamespace(actor=SimpleNamespace(use_kl_loss=loss)),
                )
            )
        )
        for reward, loss in ((None, False), (None, True), (True, False), (False, False))
    ]


def _roles(roles: Any) -> list[Any]:
    names = ("actor", "rollout", "actor_rollout", "critic", "ref", "rm", "ACTOR_ROLLOUT_REF")
    found = [roles.from_string(name) for name in names]
    return [[str(role) for role in found], str(roles.Env), raised(roles.from_string, "none")]


def _file(text: str) -> str:
    path = folder() / "own.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _custom(get: Callable[..., Any]) -> list[Any]:
    """Return results of a custom reward function: its own options, those of a call, none, without a name."""
    import asyncio

    from omegaconf import OmegaConf

    path = _file(
        "def plain(a, b=0, c=0):\n    return [a, b, c]\n\n\nasync def later(a, b=0):\n    return [a, b]\n"
    )

    def made(**options: Any) -> Any:
        return get(OmegaConf.create({"reward": {"custom_reward_function": options}}))

    one = made(path=path, name="plain", reward_kwargs={"b": 5})
    later = made(path=path, name="later", reward_kwargs={"b": 6})
    return [
        one(1),
        one(1, b=2, c=3),
        made(path=path, name="plain")(1, b=2),
        asyncio.run(later(1, b=9)),
        made(path=None),
        get(OmegaConf.create({"reward": {}})),
        [
            raised(made, path=path),
            raised(made, path=path, name="none"),
            raised(made, path=path + "x", name="plain"),
        ],
    ]


def _managers(resolve: Callable[..., Any]) -> list[Any]:
    """Return the classes of managers: registered ones, one of a file, and what is refused."""
    from omegaconf import OmegaConf

    path = _file("class Own:\n    pass\n")

    def found(**options: Any) -> str:
        made = resolve(OmegaConf.create({"reward": {"reward_manager": {"module": None, **options}}}))
        return str(made.__name__)

    return [
        [found(source="register", name=name) for name in ("naive", "dapo", "gdpo", "rate_limited", "remote")],
        found(source="importlib", name="Own", module={"path": path}),
        [
            raised(found, source="importlib", name="Own", module={"path": None}),
            raised(found, source="importlib", name="Own"),
            raised(found, source="none", name="naive"),
            raised(found, source="register", name="none"),
        ],
    ]


def _extracted(extract: Callable[..., Any]) -> list[Any]:
    tensors = {"rm_scores": [[0.0, 1.0]], "other": [[2.0, 3.0]]}
    batch = batch_of(tensors, {"acc": [1], "more": [2]}, reward_extra_keys=["acc"])
    plain = batch_of(tensors, {"acc": [1]})
    return [
        [one[0].tolist(), {name: list(values) for name, values in one[1].items()}]
        for one in (extract(batch), extract(plain))
    ]


def _called(build: Callable[..., Any]) -> list[Any]:
    """Return the class of a callback of checkpoints, and whether it has the options."""
    from omegaconf import OmegaConf

    none, own = (
        OmegaConf.create({"trainer": {"checkpoint_callback_class": name} if name else {}})
        for name in (None, "types.SimpleNamespace")
    )
    return [
        [type(build(none)).__name__, build(none).config is none, build(none).on_save(None, 1, "x")],
        [type(build(own)).__name__, build(own).config is own],
    ]


ROWS: Sequence[Row] = (
    Row(
        "options",
        "verl.trainer.ppo.utils:need_critic",
        "by option",
        _needs,
        [True, False, True, False],
        since="0.4",
    ),
    Row(
        "options",
        "verl.trainer.ppo.utils:need_reference_policy",
        "by option",
        _references,
        [False, True, True, False],
        since="0.8",
    ),
    Row(
        "options",
        "verl.trainer.ppo.utils:Role",
        "names",
        _roles,
        [
            ["actor", "rollout", "actor_rollout", "critic", "ref", "rm", "actor_rollout_ref"],
            "env",
            "ValueError",
        ],
        since="0.7",
    ),
    Row(
        "rewards",
        "verl.trainer.ppo.reward:get_custom_reward_fn",
        "functions of a file",
        _custom,
        [
            [1, 5, 0],
            [1, 5, 3],
            [1, 2, 0],
            [1, 6],
            None,
            None,
            ["AssertionError", "AttributeError", "FileNotFoundError"],
        ],
        since="0.4",
    ),
    Row(
        "rewards",
        "verl.trainer.ppo.reward:resolve_reward_manager_cls",
        "classes",
        _managers,
        [
            [
                "NaiveRewardManager",
                "DAPORewardManager",
                "GDPORewardManager",
                "RateLimitedRewardManager",
                "RemoteRewardManager",
            ],
            "Own",
            ["AssertionError", "AssertionError", "ValueError", "ValueError"],
        ],
        since="0.4",
    ),
    Row(
        "rewards",
        "verl.trainer.ppo.reward:extract_reward",
        "scores and what is logged",
        _extracted,
        [[[[0.0, 1.0]], {"acc": [1]}], [[[0.0, 1.0]], {}]],
        since="0.4",
    ),
    Row(
        "checkpoints",
        "verl.trainer.ppo.checkpoint_callback:build_checkpoint_callback",
        "classes",
        _called,
        [["CheckpointCallback", True, None], ["SimpleNamespace", True]],
    ),
)
