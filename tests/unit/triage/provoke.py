# ruff: noqa: E501 (programs stand on one line)
"""`python tests/unit/triage/provoke.py FOLDER [NAME ...]`: provokes failures for real and keeps what they print.

Runs in an environment with torch, transformers, TRL and Ray. The logs in `logs/` were made by it on 2026-11-22 with
Python 3.11, PyTorch 2.13, transformers 5.23, TRL 1.16 and Ray 2.60; paths of the machine are replaced.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 150
GLOO = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    dist.all_reduce(torch.ones(4))
    print(f"step {step} done on rank {rank}", flush=True)
    if rank == 1 and step == 1:
        FAULT
"""
TRL = """
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
config = GRPOConfig(output_dir="out", max_steps=2, per_device_train_batch_size=BATCH, num_generations=4,
    max_completion_length=4, use_cpu=True, bf16=False, report_to="none", save_strategy="no")
def reward(completions, **kwargs):
    return [REWARD for text in completions]
GRPOTrainer(model=AutoModelForCausalLM.from_pretrained(MODEL), reward_funcs=reward, args=config,
    train_dataset=Dataset.from_dict({COLUMN: ["say e", "more e"] * 8}),
    processing_class=AutoTokenizer.from_pretrained(MODEL)).train()
"""
RAY = "import os, ray\nray.init(num_cpus=2, include_dashboard=False, logging_level='WARNING', _temp_dir=os.environ['RAY_PLACE'])\n"


def trl(*, batch: int = 8, reward: str = "1.0", column: str = "'prompt'") -> str:
    """Return a program that trains with TRL."""
    return (
        TRL.replace("BATCH", str(batch))
        .replace("REWARD", reward)
        .replace("COLUMN", column)
        .replace("MODEL", "'model'")
    )


PROGRAMS: dict[str, str] = {
    "import-missing": "import flash_attn",
    "import-name": "from transformers import AutoModelForNothing",
    "no-cuda": "import torch\ntorch.ones(2).cuda()",
    "disk-full": "with open('/dev/full', 'w') as file:\n    file.write('x' * 100000)",
    "host-memory": "import torch\ntorch.empty(10**15)",
    "port-in-use": "import torch.distributed as dist\nfrom socket import socket\nother = socket()\n"
    "other.bind(('0.0.0.0', 29741))\nother.listen()\ndist.TCPStore('127.0.0.1', 29741, 1, True)",
    "checkpoint-shape": "import torch\ntorch.nn.Linear(2, 3).load_state_dict(torch.nn.Linear(2, 4).state_dict())",
    "checkpoint-damaged": "from safetensors.torch import load_file\nopen('model.safetensors', 'wb').write(b'x' * 64)\n"
    "load_file('model.safetensors')",
    "segfault": "import ctypes, faulthandler\nfaulthandler.enable()\nprint('step 1', flush=True)\nctypes.string_at(0)",
    "sampling-nan": "import torch\ntorch.multinomial(torch.full((2, 8), float('nan')), 1)",
    "shapes": "import torch\ntorch.nn.Linear(4, 2)(torch.ones(3, 5))",
    "token-range": "import torch\ntorch.nn.Embedding(8, 4)(torch.tensor([9]))",
    "hub-unreachable": "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('openai-community/gpt2')",
    "no-model-there": "from transformers import AutoConfig\nAutoConfig.from_pretrained('./no/such/model')",
    "no-chat-template": "from transformers import AutoTokenizer\ntokenizer = AutoTokenizer.from_pretrained('model')\n"
    "tokenizer.chat_template = None\ntokenizer.apply_chat_template([{'role': 'user', 'content': 'x'}])",
    "json-damaged": "import json\nfor line in ['{\"a\": 1}', '{\"a\": ']:\n    json.loads(line)",
    "interrupted": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)",
    "arguments": "import argparse\nparser = argparse.ArgumentParser(prog='train.py')\nparser.add_argument('--steps')\n"
    "parser.parse_args(['--step-size', '3'])",
    "shutdown-noise": "import sys\nclass Writer:\n    def __del__(self):\n        raise ValueError('closed file')\nwriter = Writer()\n"
    "def train():\n    raise RuntimeError('mat1 and mat2 shapes cannot be multiplied (3x5 and 4x2)')\n"
    "del writer\ntrain()",
    "trl-batch": trl(batch=6),
    "trl-column": trl(column="'question'"),
    "trl-reward": trl(reward="len(text) / kwargs['answer'][0]"),
    "ray-task": RAY
    + "@ray.remote\ndef collate(row):\n    return row['prompt']\nray.get(collate.remote({'question': 'x'}))",
    "ray-actor": RAY
    + "@ray.remote\nclass Worker:\n    def step(self):\n        os._exit(1)\nray.get(Worker.remote().step.remote())",
    "ray-killed": RAY
    + "import signal\n@ray.remote\nclass Worker:\n    def step(self):\n        os.kill(os.getpid(), signal.SIGKILL)\n"
    "ray.get(Worker.remote().step.remote())",
    "ray-resources": RAY
    + "@ray.remote(num_gpus=8)\ndef step():\n    return 1\nray.get(step.remote(), timeout=45)",
    "ray-unreachable": "import ray\nray.init(address='127.0.0.1:29742')",
}
"""Python programs by the name of the log."""
TORCHRUN: dict[str, str] = {
    "torchrun-raises": GLOO.replace(
        "FAULT", "raise ValueError('Total number of rows (30) is not divisible by 4')"
    ),
    "torchrun-killed": GLOO.replace("FAULT", "os.kill(os.getpid(), 9)"),
    "torchrun-segfault": GLOO.replace("FAULT", "import ctypes; ctypes.string_at(0)"),
}
"""Programs of two ranks."""
SHELL: dict[str, str] = {
    "command-missing": "nvidia-smi-of-nowhere --query",
    "script-missing": f"{sys.executable} examples/run_grpo_of_nowhere.py",
    "shell-killed": f"{sys.executable} -c 'import os; os.kill(os.getpid(), 9)'; exit 137",
    "make-failed": "printf 'all:\\n\\tpython3-config-of-nowhere --includes\\n' > Makefile; make",
}
"""Commands of a shell script."""


def command(name: str, place: Path) -> list[str]:
    """Write what is run, and return its command line."""
    script = place / "train.py"
    if name in SHELL:
        (place / "run.sh").write_text(SHELL[name] + "\n")
        return ["bash", "run.sh"]
    script.write_text({**PROGRAMS, **TORCHRUN}[name])
    if name in TORCHRUN:
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--standalone",
            "train.py",
        ]
    return [sys.executable, "train.py"]


def redacted(text: str, place: Path) -> str:
    """Replace paths and the name of the machine."""
    for path, shown in ((str(place), "/run"), (sys.prefix, "/opt/env"), (sys.base_prefix, "/usr/local")):
        text = text.replace(path, shown)
    text = re.sub(r"/[\w./-]*/(ray[-\w]*/)?session_[\w-]+", "/ray/session", text)
    return text.replace(os.uname().nodename, "node-1")


def main() -> int:
    """Provoke each failure, or those that are named."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or [*PROGRAMS, *TORCHRUN, *SHELL]:
        with tempfile.TemporaryDirectory(prefix="p") as work:
            place = Path(work)
            model = os.environ.get("TINY_MODEL")
            if model:
                (place / "model").symlink_to(model)
            environment = {
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
                "HF_HOME": str(place / "hub"),
                "RAY_PLACE": str(place / "ray"),
            }
            ran = subprocess.run(
                command(name, place),
                cwd=place,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
            text = redacted(ran.stdout.decode(errors="replace"), place)
            (folder / f"{name}.log").write_text(text)
            print(f"{name}: exit status {ran.returncode}, {len(text)} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
