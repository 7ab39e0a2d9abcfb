# ruff: noqa: E501 (programs stand on one line)
"""`python tests/unit/triage/provoke_cuda_graphs.py FOLDER`: failures of CUDA graphs on a GPU, provoked with PyTorch alone.

Each program runs in a process of its own, for a fault of the GPU ends the whole process, and leaves FOLDER/NAME.log with
all that it printed; the same is printed, one section a program. The folder of this machine's packages becomes
/opt/env, the program's own /run, as in the other logs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 150
BROKEN_KERNEL = '''
import ctypes, torch
PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry store(.param .u64 address)
{
    .reg .u64 %place;
    .reg .u32 %value;
    ld.param.u64 %place, [address];
    mov.u32 %value, 1;
    st.global.u32 [%place], %value;
    ret;
}
"""
torch.zeros(1, device="cuda")
cuda = ctypes.CDLL("libcuda.so.1")
module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuModuleLoadData(ctypes.byref(module), PTX) == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"store") == 0

def store(address):
    """A kernel that writes to an address; 8 is nobody's."""
    place = ctypes.c_uint64(address)
    words = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(place), ctypes.c_void_p))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, words, None) == 0
'''
MODEL = """
import torch
class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64)
    def forward(self, ids):
        return self.head(self.embedding(ids))
model, ids = Decoder().cuda().eval(), torch.zeros(4, dtype=torch.long, device="cuda")
torch.set_grad_enabled(False)
def capture(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph
"""
PROGRAMS = {
    "warmup": BROKEN_KERNEL
    + MODEL
    + "def decode_step():\n    store(8)\n    return model(ids)\nprint('warming up CUDA graphs', flush=True)\ncapture(decode_step)\n",
    "callables": BROKEN_KERNEL
    + MODEL
    + "class Broken(Decoder):\n    def forward(self, ids):\n        store(8)\n        return super().forward(ids)\n"
    "torch.set_grad_enabled(True)\ntorch.cuda.make_graphed_callables(Broken().cuda(), (ids,))\n",
    "replay": BROKEN_KERNEL
    + MODEL
    + "graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    store(8)\n    logits = model(ids)\n"
    "graph.replay()\nprint(logits.argmax(-1).tolist())\n",
    "token": MODEL
    + "graph = capture(lambda: model(ids))\nids.fill_(4096)\ngraph.replay()\ntorch.cuda.synchronize()\n",
    "item": MODEL
    + "def decode_step():\n    logits = model(ids)\n    if logits.argmax().item() == 3:\n        return None\n    return logits\ncapture(decode_step)\n",
    "nonzero": MODEL
    + "class Masked(Decoder):\n    def forward(self, ids):\n        return super().forward(ids)[ids.bool()]\n"
    "torch.set_grad_enabled(True)\ntorch.cuda.make_graphed_callables(Masked().cuda(), (ids,))\n",
    "default-stream": MODEL
    + "graph = torch.cuda.CUDAGraph()\ngraph.capture_begin()\nmodel(ids)\ngraph.capture_end()\n",
    "memory": MODEL
    + "graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    torch.empty(2 ** 44, dtype=torch.uint8, device='cuda')\n",
    "generator": MODEL
    + "random = torch.Generator('cuda').manual_seed(0)\ngraph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n"
    "    token = torch.multinomial(model(ids).softmax(-1), 1, generator=random)\n",
    "transfer": MODEL
    + "graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    next_ids = model(ids).argmax(-1).cpu()\n",
    "overwritten": MODEL
    + "step = torch.compile(model, mode='reduce-overhead')\nkept = []\nfor _ in range(4):\n    kept.append(step(ids))\n"
    "print(sum(logits.sum() for logits in kept))\n",
}
"""By the name of its log."""


def provoke(name: str, folder: Path) -> str:
    """Run one program and return what it printed."""
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "generate.py"
        script.write_text(PROGRAMS[name])
        ended = subprocess.run(
            [sys.executable, "-u", str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_LAUNCH_BLOCKING": "0", "TORCHINDUCTOR_CACHE_DIR": f"{place}/compiled"},
            timeout=SECONDS,
            check=False,
        )
        text = ended.stdout.decode(errors="replace").replace(place, "/run")
    text = text.replace(sys.prefix, "/opt/env").replace(sys.base_prefix, "/opt/python")
    (folder / f"{name}.log").write_text(text)
    return f"===== {name}: exit status {ended.returncode}\n{text}"


def main() -> int:
    """Provoke all of them."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    import torch

    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name in PROGRAMS:
        try:
            print(provoke(name, folder), flush=True)
        except subprocess.TimeoutExpired:
            print(f"===== {name}: still running after {SECONDS} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
