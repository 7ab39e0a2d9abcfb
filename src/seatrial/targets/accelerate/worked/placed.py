"""Worked examples of hooks, offloaded weights, checkpoints and wrappers of models."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.targets.accelerate.known import OF_ITS_OWN
from seatrial.targets.accelerate.ranked import new_accelerator
from seatrial.targets.common.worked_rows import Row

HOOKS = "accelerate.hooks"
MODELING = "accelerate.utils.modeling"
OFFLOAD = "accelerate.utils.offload"
WIDTH = 4


class Net(nn.Module):
    """Blocks 1 and 10 among others, a buffer, a parameter of its own, and a norm."""

    scale: Tensor

    def __init__(self, blocks: int = 2) -> None:
        """Make it with weights of its own."""
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(blocks)])
        self.norm = nn.LayerNorm(WIDTH)
        self.gain = nn.Parameter(torch.linspace(0.5, 2.0, WIDTH))
        self.register_buffer("scale", torch.linspace(1.0, 2.0, WIDTH))

    def forward(self, x_BD: Tensor, bias: float = 0.0) -> Tensor:
        """Return [B, D]."""
        x_BD = torch.tanh(self.first(x_BD))
        for block in self.blocks:
            x_BD = x_BD + torch.tanh(block(x_BD))
        made_BD: Tensor = self.norm(x_BD) * self.gain * self.scale + bias
        return made_BD


def net(seed: int = 0, blocks: int = 2) -> Net:
    """Return a model of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net(blocks)


def inputs() -> Tensor:
    """Return [B, D]."""
    return torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH)


def differing(found: Mapping[str, Tensor], right: Mapping[str, Tensor], what: str = "") -> list[str]:
    """Return names that one of both does not have, or whose tensors differ in dtype or value."""
    wrong = [f"{what}{name} is missing" for name in sorted(right.keys() - found.keys())]
    wrong += [f"{what}{name} is too much" for name in sorted(found.keys() - right.keys())]
    for name in sorted(found.keys() & right.keys()):
        one, due = found[name].detach(), right[name].detach()
        if one.dtype != due.dtype or one.shape != due.shape:
            wrong.append(f"{what}{name}: {one.dtype} {[*one.shape]}, {due.dtype} {[*due.shape]} is due")
        elif one.device.type == "meta" or not torch.equal(one, due):
            wrong.append(f"{what}{name}: other values")
    return wrong


class _Adding:
    """Made into a hook that adds to the first argument and multiplies the output."""

    def __init__(self, number: float, factor: float) -> None:
        self.number, self.factor, self.events = number, factor, list[str]()

    def init_hook(self, module: Any) -> Any:
        self.events.append("init")
        return module

    def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        return (args[0] * self.factor + self.number, *args[1:]), {
            **kwargs,
            "bias": kwargs.get("bias", 0.0) + 1.0,
        }

    def post_forward(self, module: Any, output: Any) -> Any:
        return output * self.factor + self.number

    def detach_hook(self, module: Any) -> Any:
        self.events.append("detach")
        return module


def _hook(number: float, factor: float) -> Any:
    from accelerate.hooks import ModelHook

    return type("Adding", (_Adding, ModelHook), {})(number, factor)


def _hooked(add: Callable[..., Any]) -> list[str]:
    """Return which outputs are not those of the hooks in their order."""
    from accelerate.hooks import remove_hook_from_module

    model: Any = net()
    x = inputs()
    plain, wrong = model(x), []

    def check(what: str, due: Tensor) -> None:
        if not torch.allclose(model(x), due, atol=1e-6):
            wrong.append(what)

    def through(x_BD: Tensor, *hooks: tuple[float, float]) -> Tensor:
        for number, factor in hooks:
            x_BD = x_BD * factor + number
        out = model._old_forward(x_BD, bias=float(len(hooks)))
        for number, factor in hooks:
            out = out * factor + number
        made: Tensor = out
        return made

    one, two, three = _hook(0.5, 2.0), _hook(-0.25, 3.0), _hook(0.125, -1.0)
    add(model, one)
    check("one hook", through(x, (0.5, 2.0)))
    add(model, two, append=True)
    check("two hooks", through(x, (0.5, 2.0), (-0.25, 3.0)))
    add(model, three, append=True)
    check("three hooks", through(x, (0.5, 2.0), (-0.25, 3.0), (0.125, -1.0)))
    add(model, two)
    check("a hook that replaces others", through(x, (-0.25, 3.0)))
    remove_hook_from_module(model)
    check("no hook", plain)
    if hasattr(model, "_hf_hook") or ("forward" in vars(model) and model.forward.__func__ is not Net.forward):
        wrong.append("a forward that is not the class's")
    return wrong


def _without_gradients(add: Callable[..., Any]) -> list[bool]:
    hook = _hook(0.0, 1.0)
    hook.no_grad = True
    model = add(net(), hook)
    return [model(inputs()).requires_grad, net()(inputs()).requires_grad]


def _removed_from_children(remove: Callable[..., Any]) -> list[str]:
    from accelerate.hooks import add_hook_to_module

    model = net()
    due = model(inputs())
    for module in (model, model.first, model.blocks[1]):
        add_hook_to_module(module, _hook(0.5, 2.0))
    remove(model)
    partly = [name for name, module in model.named_modules() if hasattr(module, "_hf_hook")]
    remove(model, recurse=True)
    left = [name for name, module in model.named_modules() if hasattr(module, "_hf_hook")]
    return [*partly, *left, *(() if torch.equal(model(inputs()), due) else ("other outputs",))]


def _offloaded_training(offload: Callable[..., Any]) -> list[str]:
    """Return what differs from the plain model of an offloaded one: outputs, gradients of inputs, weights."""
    plain, x = net(), inputs().requires_grad_()
    plain(x).sum().backward()
    due, x.grad = x.grad, None
    assert due is not None
    model = offload(net(), execution_device=torch.device("cpu"), offload_buffers=True)
    output = model(x)
    output.sum().backward()
    wrong = [] if torch.allclose(output, plain(x)) else ["outputs"]
    wrong += [] if torch.allclose(x.grad if x.grad is not None else due + 1, due) else ["gradients of inputs"]
    wrong += [
        f"{name} is not offloaded" for name, one in model.named_parameters() if one.device.type != "meta"
    ]
    return wrong


def _aligned(align: Callable[..., Any]) -> list[str]:
    from accelerate import cpu_offload

    plain = net()
    model = cpu_offload(net(), execution_device=torch.device("cpu"))
    wrong = []
    with align(model.first):
        wrong += differing(
            dict(model.first.named_parameters()), dict(plain.first.named_parameters()), "within: "
        )
    wrong += [f"{name} stays" for name, one in model.first.named_parameters() if one.device.type != "meta"]
    wrong += [] if torch.equal(model(inputs()), plain(inputs())) else ["outputs afterwards"]
    return wrong


def _from_offload(collect: Callable[..., Any]) -> list[str]:
    from accelerate import cpu_offload

    plain = net()
    model = cpu_offload(net(), execution_device=torch.device("cpu"))
    state = dict(model.state_dict())
    collect(model.first, "first.weight", state)
    return differing(
        {name: value for name, value in state.items() if name.startswith("first.")},
        {name: value for name, value in plain.state_dict().items() if name.startswith("first.")},
    )


def _state_of_offloaded(read: Callable[..., Any]) -> list[str]:
    from accelerate import cpu_offload

    model = cpu_offload(net(), execution_device=torch.device("cpu"), offload_buffers=True)
    return differing(read(model), dict(net().state_dict()))


def _unwrapped(unwrap: Callable[..., Any]) -> list[Any]:
    """Return whether wrappers come off, and the dtype of outputs in bfloat16 with and without its wrapper."""
    found: list[Any] = []
    for keeps in (True, False):
        accelerator = new_accelerator(mixed_precision="bf16")
        own = nn.Linear(WIDTH, WIDTH)
        prepared = accelerator.prepare(own)
        made = unwrap(prepared, keep_fp32_wrapper=keeps)
        with accelerator.autocast():
            found.append([made is own, str(made(inputs()).dtype)])
    return found


def _compiled(compile_regions: Callable[..., Any]) -> list[Any]:
    """Return what differs of a model whose blocks are compiled, and what is compiled."""
    from accelerate.utils import extract_model_from_parallel, has_compiled_regions

    own = net()
    made = compile_regions(own, backend="eager")
    weights = dict(own.named_parameters())
    same = all(any(one is other for other in weights.values()) for one in made.parameters())
    outer = extract_model_from_parallel(made, keep_torch_compile=False)
    return [
        has_compiled_regions(made),
        has_compiled_regions(own),
        torch.allclose(made(inputs()), own(inputs())),
        same,
        outer is own,
        [type(block).__name__ for block in made.blocks],
    ]


def _made_empty(make: Callable[..., Any]) -> list[Any]:
    """Return devices of a weight, a buffer and a tensor of its own, by what is said of buffers."""
    found = []
    for options, variable in (
        ({}, ""),
        ({}, "true"),
        ({"include_buffers": True}, ""),
        ({"include_buffers": False}, "1"),
    ):
        os.environ.pop("ACCELERATE_INIT_INCLUDE_BUFFERS", None)
        if variable:
            os.environ["ACCELERATE_INIT_INCLUDE_BUFFERS"] = variable
        with make(**options):
            model, own = Net(), torch.ones(2)
        found.append([model.first.weight.device.type, model.scale.device.type, model.norm.bias.device.type])
        after = Net()
        if {after.scale.device.type, after.gain.device.type} != {"cpu"} or own.device.type not in (
            "cpu",
            "meta",
        ):
            found.append(["tensors that are made afterwards"])
    return found


class _Half(nn.Module):
    """Gives nested values of many types."""

    def forward(self, x_BD: Tensor, *, factor: float = 2.0) -> dict[str, Any]:
        """Return them."""
        half = x_BD.to(torch.bfloat16)
        return {
            "half": half * factor,
            "list": [half.half(), x_BD, "text"],
            "pair": (x_BD.double(), x_BD.long(), None),
            "own": _OwnTensor(half),
        }


class _OwnTensor:
    """An object of the caller with a dtype, which becomes another as tensors do."""

    def __init__(self, value: Tensor) -> None:
        self.value, self.dtype = value, value.dtype

    def float(self) -> _OwnTensor:
        """Return it in float32."""
        return _OwnTensor(self.value.float())


def _converted(convert: Callable[..., Any]) -> list[Any]:
    """Return the dtypes of outputs, and the name, signature and words of a function that is converted."""
    model = _Half()
    made = convert(model.forward)
    out = made(inputs(), factor=3.0)
    dtypes = [
        out["half"].dtype,
        *(one.dtype for one in out["list"][:2]),
        *(one.dtype for one in out["pair"][:2]),
    ]
    prepared = new_accelerator(mixed_precision="bf16").prepare(_Half())
    return [
        [str(one) for one in (*dtypes, out["own"].dtype)],
        [out["list"][2], out["pair"][2], type(out["pair"]).__name__],
        torch.equal(out["half"], (inputs().to(torch.bfloat16) * 3.0).float()),
        [*inspect.signature(made).parameters],
        [*inspect.signature(prepared.forward).parameters],
        getattr(made.__wrapped__, "__name__", "none"),
        made.__wrapped__.__doc__,
    ]


def _bottom_up(function: Callable[..., Any]) -> list[str]:
    model = net()
    found = [name for one in function(model) for name, module in model.named_modules() if module is one]
    places = {name: place for place, name in enumerate(found)}
    wrong = [f"{name} is left out" for name, _ in model.named_modules() if name not in places]
    return wrong + [
        f"{name} after its parent"
        for name in places
        if name and places[name] > places[name.rpartition(".")[0]]
    ]


PLACED_ROWS: Sequence[Row] = (
    Row(
        "wrappers", f"{HOOKS}:add_hook_to_module", "several hooks, one that replaces them, none", _hooked, []
    ),
    Row("wrappers", f"{HOOKS}:add_hook_to_module", "no gradients", _without_gradients, [False, True]),
    Row(
        "wrappers",
        f"{HOOKS}:remove_hook_from_module",
        "of children",
        _removed_from_children,
        ["first", "blocks.1"],
    ),
    Row("wrappers", "accelerate:cpu_offload", "gradients of inputs", _offloaded_training, []),
    Row("wrappers", f"{MODELING}:align_module_device", "offloaded and plain", _aligned, []),
    Row(
        "wrappers",
        "accelerate.utils.other:extract_model_from_parallel",
        "in bfloat16",
        _unwrapped,
        [[True, "torch.float32"], [True, "torch.bfloat16"]],
    ),
    Row(
        "wrappers",
        "accelerate.utils.other:compile_regions",
        "blocks of one class",
        _compiled,
        [True, False, True, True, True, ["OptimizedModule", "OptimizedModule"]],
    ),
    Row(
        "wrappers",
        "accelerate.utils.operations:convert_outputs_to_fp32",
        "nested outputs, and the signature",
        _converted,
        [
            ["torch.float32"] * 3 + ["torch.float64", "torch.int64", "torch.float32"],
            ["text", None, "tuple"],
            True,
            ["x_BD", "factor"],
            ["x_BD", "factor"],
            "forward",
            "Return them.",
        ],
    ),
    Row(
        "models",
        "accelerate:init_empty_weights",
        "buffers by an option and a variable",
        _made_empty,
        [["meta", "cpu", "meta"], ["meta"] * 3, ["meta"] * 3, ["meta", "cpu", "meta"]],
    ),
    Row("wrappers", "accelerate.utils.other:get_module_children_bottom_up", "children first", _bottom_up, []),
    Row("states", f"{MODELING}:get_state_dict_from_offload", "one module", _from_offload, []),
    Row(
        "states",
        f"{MODELING}:get_state_dict_offloaded_model",
        "all modules",
        _state_of_offloaded,
        [],
        known=OF_ITS_OWN,
    ),
)
