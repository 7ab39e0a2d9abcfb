"""Worked examples of a policy on Megatron-core: its weights, moments, states, updates and passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn

from refrl.distributed import World
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import batch, example


def of_megatron_policies() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_moments()
    yield from _of_weights()
    yield from _of_policies()
    yield from _of_passes()


def _of_moments() -> Iterator[WorkedExample]:
    right: dict[str, Any] = {
        "taken": [[1.0], [2.0]], "has": [False, True], "of a": [1.0], "of c": None, "zero": [0.0],
        "state": {"exp_avg": {"a": 5.0, "b": 7.0}, "master": {"b": 8.0}},
        "steps": [4.0, 4.0, 5.0, 4],
    }  # fmt: skip
    yield example("gradients and moments of a rank", right, _moments)


def _moments() -> dict[str, Any]:
    from refrl.policy.megatron import optimizer

    module = nn.Module()
    module.one, module.two = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    module.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    parameters: dict[str, Any] = {"a": module.one, "b": module.two}
    for weight, gradient in zip(parameters.values(), torch.tensor([[1.0], [2.0]]), strict=True):
        weight.main_grad = gradient
    state = {
        "one.exp_avg": torch.tensor(5.0), "one.step": torch.tensor(1.0), "two.step": torch.tensor(1.0),
        "two.exp_avg": torch.tensor(7.0), "two.master": torch.tensor(8.0),
    }  # fmt: skip
    adamw = SimpleNamespace(
        weights=[nn.Parameter(torch.zeros(1)) for _ in "ab"], state_tensors=lambda: state, num_updates_done=0
    )
    local: Any = SimpleNamespace(module=module, parameters=parameters)
    with patch.object(optimizer, "ClippedAdamW", lambda *words: adamw):
        own = optimizer.MegatronOptimizer(local, cast(Any, None), 3)
    found: dict[str, Any] = {"has": [own.has_gradients], "zero": cast(Any, own.gradient("b")).tolist()}
    own.take_gradients()
    found["has"].append(own.has_gradients)
    found["taken"] = [cast(Any, weight.grad).tolist() for weight in adamw.weights]
    found["of a"], found["of c"] = cast(Any, own.gradient("a")).tolist(), own.gradient("c")
    found["state"] = {
        kind: {name: float(one) for name, one in of.items()} for kind, of in own.state().items()
    }
    own.set_steps(4)
    found["steps"] = [
        float(state["one.step"]),
        float(state["two.step"]),
        float(state["one.exp_avg"]),
        adamw.num_updates_done,
    ]
    return found


def _of_weights() -> Iterator[WorkedExample]:
    for adapts in (False, True):
        base = ["base in memory", "buffer"]
        merged = ["base + adapter in memory", "buffer"] if adapts else base
        own = ["adapter in memory"] if adapts else base
        trained = ["adapter in memory"] if adapts else ["base in memory"]
        files = ["base + adapter", ["adapter in memory", "lora"]] if adapts else ["base", None]
        right = [merged, base, own, trained, ["off"] * adapts, [*files, torch.bfloat16, "tokenizer", "there"]]
        yield example(f"the weights of a model, adapted: {adapts}", right, _weights, adapts)


def _weights(adapts: bool) -> list[Any]:
    """Return the weights of each kind, what is done for the model as it is loaded, and what is saved."""
    from refrl.policy.megatron import weights

    noted: list[str] = []

    @contextmanager
    def off() -> Iterator[None]:
        noted.append("off")
        yield

    def local(name: str) -> Any:
        return SimpleNamespace(label=name, architecture="architecture", parameters={name: torch.zeros(1)})

    def merged(base: Any, own: Mapping[str, Any]) -> Any:
        return [(f"{name} + {next(iter(own)).removesuffix(' in memory')}", value) for name, value in base]

    adapters: Any = SimpleNamespace(local=local("adapter"), off=off, merged=merged, config="lora")
    saved: list[Any] = []

    def save(
        given: Any, architecture: Any, dtype: Any, tokenizer: Any, directory: Path, *, adapters: Any
    ) -> None:
        files = [next(iter(adapters[0])), adapters[1]] if adapters else None
        saved.extend([next(iter(given))[0], files, dtype, tokenizer, str(directory)])

    own = weights.Weights(local("base"), torch.bfloat16, adapters if adapts else None)
    given: Mapping[str, Any] = {
        "gather": lambda get, of, dtype: iter(
            [(of.label, dtype)] if get(of.label) is not None and dtype == torch.bfloat16 else []
        ),
        "in_memory": lambda tensors, of: ((f"{name} in memory", one) for name, one in tensors),
        "rotary_buffers": lambda of, device: {"buffer": device},
        "save_directory": save,
    }
    with ExitStack() as stack:
        for name, function in given.items():
            stack.enter_context(patch.object(weights, name, function))
        kinds = [own.named_weights(), own.base_weights(), own.own_weights(), own.trained_weights()]
        found: list[Any] = [[name for name, _ in kind] for kind in kinds]
        with own.as_loaded():
            found.append(list(noted))
        tokenizer: Any = "tokenizer"
        own.save(tokenizer, Path("there"))
    return [*found, saved]


def _of_policies() -> Iterator[WorkedExample]:
    right_state = {
        "model.a": 1.0,
        "optimizer.a.exp_avg": 5.0,
        "optimizer.a.master": 6.0,
        "optimizer.a.step": 3.0,
    }
    taken = [("trained", {"a": 1.0}), ("live exp_avg", {"a": 5.0}), ("live master", {"a": 6.0}), 3, {}]
    yield example("a state of a policy, and what is taken back of it", [right_state, taken], _state)
    for kept, right in (
        (False, [None, None, []]),
        (True, ["base", "scored module of reference", ["loaded"]]),
    ):
        yield example(f"the reference of a policy, kept: {kept}", right, _reference, kept)
    right_step = [("agrees", 0.5, "parameters", "links"), (0.5, 0.25)]
    yield example("a step of a policy", right_step, _stepped)
    yield example("raw gradients of a policy", [{"a": 1.0}, torch.float32], _gradients)
    for scores, has in product((False, True), (False, True)):
        right_update = {
            "cleared": not has, "metrics": [{"loss": 0.0}, {"loss": 1.0}], "rows": [[0], [1, 2]],
            "counts": [(5.0, 3.0)] * 2, "old": [True, True] if scores else [None, None], "taken": 1,
            "scored": [[0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.0, 0.0]] if scores else None,
        }  # fmt: skip
        yield example(
            f"an update that scores: {scores}, after gradients: {has}", right_update, _updated, scores, has
        )


def _policy(**parts: Any) -> Any:
    from refrl.policy.megatron.policy import MegatronPolicy

    made = object.__new__(MegatronPolicy)
    vars(made).update({"_device": torch.device("cpu"), "_frozen": "f", "_state": {}, **parts})
    return made


def _state() -> list[Any]:
    from refrl.policy.megatron import policy

    taken: list[Any] = []
    live = {kind: {"a": torch.tensor(value)} for kind, value in (("exp_avg", 5.0), ("master", 6.0))}
    labels = {id(live["exp_avg"]): "live exp_avg", id(live["master"]): "live master"}
    parameters: Any = {}
    labels[id(parameters)] = "trained"
    trained = SimpleNamespace(parameters=parameters)
    weights = SimpleNamespace(
        trained=trained,
        own_weights=lambda: iter([("a", torch.tensor(1.0))]),
        trained_weights=lambda: iter([("a", torch.tensor(1.0))]),
        whole=lambda get, dtype: iter([("a", get("a").to(dtype))]),
    )
    adamw = SimpleNamespace(num_updates_done=3)
    own = _policy(
        _weights=weights, _optimizer=SimpleNamespace(adamw=adamw, state=lambda: live, set_steps=taken.append)
    )
    state = own.state_tensors()
    found = {name: float(one) for name, one in state.items()}

    def take(tensors: Any, targets: Any, local: Any) -> None:
        assert local is trained
        taken.append((labels[id(targets)], {name: float(one) for name, one in tensors.items()}))

    with patch.object(policy, "take", take):
        own.load_state_facts(own.state_facts())
    return [found, [*taken, dict(own._state)]]


def _reference(kept: bool) -> list[Any]:
    noted: list[str] = []

    @contextmanager
    def loaded() -> Iterator[None]:
        noted.append("loaded")
        yield

    reference = SimpleNamespace(
        base_weights=lambda: "base", as_loaded=loaded, local=SimpleNamespace(module="module of reference")
    )
    own = _policy(_reference=reference if kept else None, _score=lambda module, rows: f"scored {module}")
    return [own.reference_weights(), own.reference_logprobs(batch()), noted]


def _stepped() -> Any:
    noted: list[Any] = []
    trained = SimpleNamespace(parameters="parameters", links="links")
    own = _policy(
        _optimizer=SimpleNamespace(adamw=SimpleNamespace(step=lambda: (0.5, 0.25))),
        _weights=SimpleNamespace(trained=trained),
        _parallel=SimpleNamespace(check_agreement=lambda *words: noted.append(("agrees", *words))),
    )
    found = own.step()
    return [*noted, found]


def _gradients() -> Any:
    live = torch.tensor(1.0)
    types: list[Any] = []

    def whole(get: Any, dtype: Any) -> Any:
        types.append(dtype)
        return iter([("a", get("a"))])

    own = _policy(
        _optimizer=SimpleNamespace(gradient=lambda name: live), _weights=SimpleNamespace(whole=whole)
    )
    found = own.named_gradients()
    live.fill_(9.0)
    return [{name: float(one) for name, one in found.items()}, *types]


def _updated(scores: bool, has: bool) -> dict[str, Any]:
    """Return what an update of three rows in passes of one and two does, sees and gives."""
    from refrl.policy.megatron import policy

    found: dict[str, Any] = {"cleared": False, "counts": [], "old": [], "taken": 0}

    def clear() -> None:
        found["cleared"] = True

    def take() -> None:
        found["taken"] += 1

    def train(module: Any, scorer: Any, passes: Any, share: Any) -> list[Any]:
        assert (module.label, scorer) == ("trained", "scorer")
        kept = []
        for number, micro in enumerate(passes):
            logprobs = torch.full(micro.mask_BT.shape, float(number), requires_grad=True) * micro.mask_BT
            kept.append(share(logprobs, torch.zeros_like(logprobs), micro)[1])
        return [*kept, "of another rank"]

    def loss(
        logprobs: Any, entropy: Any, micro: Any, *, global_valid_tokens: Any, global_valid_seqs: Any
    ) -> Any:
        found["counts"].append((float(global_valid_tokens), float(global_valid_seqs)))
        old = micro.old_logprobs_BT
        found["old"].append(None if old is None else torch.equal(old, logprobs) and not old.requires_grad)
        return logprobs.sum(), {"loss": float(logprobs.detach().max())}

    rows = batch()
    parallel = SimpleNamespace(alone=True, from_last_stage=lambda values: values)
    own = _policy(
        _trained=SimpleNamespace(label="trained", zero_grad_buffer=clear), _scorer="scorer", _parallel=parallel,
        _rows=World(), _optimizer=SimpleNamespace(has_gradients=has, take_gradients=take),
    )  # fmt: skip
    with (
        patch.object(policy, "train_passes", train),
        patch.object(policy, "even_passes", lambda micro, parallel: micro),
    ):
        done = own.accumulate(rows, loss, [[0], [1, 2]], scores=scores, with_rows=True)
    found["metrics"] = [{name: float(value) for name, value in part.items()} for part in done.parts]
    found["rows"] = [list(part) for part in done.micro_batches]
    old = rows.old_logprobs_BT
    found["scored"] = None if old is None else (old[:, :3] * 1.0).tolist()
    return found


def _of_passes() -> Iterator[WorkedExample]:
    for is_last in (True, False):
        right = {"num_microbatches": 2, "seq_length": 1, "micro_batch_size": 1, "forward_only": True,
                 "collect_non_loss_data": True, "model": 1}  # fmt: skip
        scored = ["logprobs 0", "logprobs 1"] if is_last else []
        yield example(
            f"passes that score, in the last stage: {is_last}", [right, scored, []], _run, True, is_last
        )
        right = {**right, "forward_only": False, "collect_non_loss_data": False}
        learned = [["share", 0, "kept 0"], ["share", 0, "kept 1"]] if is_last else []
        yield example(
            f"passes that train, in the last stage: {is_last}", [right, learned, []], _run, False, is_last
        )
    for granularity, modes in ((None, [False, False]), ("full", [True, False])):
        yield example(
            f"modes of passes that compute {granularity} again, and fail", modes, _modes, granularity
        )
    yield example("gradients that are finished", [["model"], None, {"pg_collection": "groups"}], _finished)


def _run(scores: bool, is_last: bool) -> list[Any]:
    """Return how passes are run, and what is kept of each."""
    from refrl.policy.megatron import forward

    asked: dict[str, Any] = {}
    seen: list[Any] = []

    class Model(nn.Module):
        config = SimpleNamespace(recompute_granularity=None)

        def forward(self, ids: Any, places: Any, mask: Any) -> Any:
            assert places is None
            return f"logits of {ids} {mask}"

    def schedule(*, forward_step_func: Any, data_iterator: Any, model: Any, **options: Any) -> list[Any]:
        asked.update(options, model=len(model))
        kept = []
        for _ in range(options["num_microbatches"]):
            output, finish = forward_step_func(data_iterator, model[0])
            if is_last:
                kept.append(finish(output, non_loss_data=options["collect_non_loss_data"]))
        seen.extend(data_iterator)
        return kept

    def inputs(batch: int) -> Any:
        def score(logits: str) -> Any:
            assert logits == f"logits of ids {batch} mask {batch}"
            return f"logprobs {batch}", f"entropy {batch}"

        return SimpleNamespace(input_ids_BS=f"ids {batch}", attention_mask=f"mask {batch}", score=score)

    def loss(logprobs: str, entropy: str, batch: int) -> Any:
        assert (logprobs, entropy) == (f"logprobs {batch}", f"entropy {batch}")
        return "share", f"kept {batch}"

    scorer: Any = SimpleNamespace(inputs=inputs)
    with patch.object(forward, "get_forward_backward_func", lambda: schedule):
        if scores:
            found: Any = forward.score_passes(Model(), scorer, cast(Any, [0, 1]))
        else:
            kept = forward.train_passes(Model(), scorer, cast(Any, [0, 1]), cast(Any, loss))
            found = [[value, int(number), one] for value, number, one in kept]
    return [asked, found, seen]


def _modes(granularity: str | None) -> list[bool]:
    from refrl.policy.megatron import forward

    module: Any = nn.Linear(1, 1).eval()
    module.config = SimpleNamespace(recompute_granularity=granularity)
    found: list[bool] = []

    def fail(*words: Any, **options: Any) -> None:
        found.append(module.training)
        raise ValueError

    with patch.object(forward, "_run", fail), suppress(ValueError):
        forward.train_passes(module, cast(Any, None), [batch()], cast(Any, None))
    return [*found, module.training]


def _finished() -> list[Any]:
    from refrl.policy.megatron import forward

    noted: list[Any] = []
    with patch.object(
        forward,
        "finalize_model_grads",
        lambda model, number, **options: noted.extend([model, number, options]),
    ):
        forward.sum_gradients(cast(Any, ["model"]), 17, pg_collection="groups")
    return noted
