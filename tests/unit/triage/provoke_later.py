# ruff: noqa: E501 (programs stand on one line)
"""`python tests/unit/triage/provoke_later.py FOLDER NAME ...`: failures whose boundary was written down before triage saw them.

Runs as `provoke.py` does. `vllm-*` need an environment with vLLM (0.32 on CPU), `seed-lora` PEFT 0.21, `seed-tp-guard`,
`seed-two-backends` and `seed-refit-*` a checkout of NeMo RL (commit 7ea279abf) on PYTHONPATH with the packages that it imports. The
logs of Slurm 22.05 (`slurm-*` by hand, `srun-*` from here) are of a cluster of one machine, Debian's slurmctld and slurmd.
"""

from __future__ import annotations

import sys

import provoke

TRL = """
import json, os, sys, torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
model, tokenizer = AutoModelForCausalLM.from_pretrained("model"), AutoTokenizer.from_pretrained("model")
shared = dict(output_dir="out", max_steps=3, per_device_train_batch_size=8, use_cpu=True, bf16=False, report_to="none",
    save_strategy="no", disable_tqdm=True)
def reward(completions, **kwargs):
    return [float(len(text)) for text in completions]
def grpo(reward=reward, **options):
    return GRPOTrainer(model=model, reward_funcs=reward, processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": ["say e", "more e"] * 8, "answer": ["3", "four"] * 8}),
        args=GRPOConfig(**{**shared, "num_generations": 4, "max_completion_length": 4, **options}))
def sft(rows, **options):
    return SFTTrainer(model=model, processing_class=tokenizer, train_dataset=Dataset.from_list(rows * 16), args=SFTConfig(**{**shared, **options}))
"""
GLOO = """
import datetime, os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
print(f"step 0 done on rank {rank}", flush=True)
"""
REFIT = """
import threading, torch
torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *name: None  # a CPU build has none
import zmq
from nemo_rl.models.generation.vllm.vllm_backend import VllmInternalWorkerExtension
from nemo_rl.models.policy.utils import IPCProtocol
class Worker(VllmInternalWorkerExtension):
    device = torch.device("cpu")
    def get_zmq_address(self):
        return "ipc://refit.sock"
    def _weight_update_errors_are_fatal(self):
        return True
worker = Worker()
"""
PROGRAMS: dict[str, str] = {
    "seed-refit-unprepared": REFIT + "worker.state_dict_info = None\nworker.update_weights_from_collective()",
    "seed-refit-manifest": REFIT
    + "worker.prepare_refit_info({name: ((64, 16), torch.float32) for name in ('model.embed_tokens.weight', 'lm_head.weight')})\n"
    "def send():\n    socket = zmq.Context.instance().socket(zmq.REQ)\n    socket.bind(worker.get_zmq_address())\n"
    "    for payload in ((None, ['model.embed_tokens.weight', 'model.layers.0.mlp.router.weight'], 8192), IPCProtocol.COMPLETE):\n"
    "        socket.send_pyobj(payload)\n        socket.recv()\n"
    "threading.Thread(target=send, daemon=True).start()\nworker.update_weights_via_ipc_zmq()",
    "seed-refit-undecoded": REFIT
    + "import io, types\nclass Model(torch.nn.Linear):\n    def load_weights(self, weights):\n"
    "        return {name for name, _ in weights}\n"
    "worker._sparse_delta_applier = None\nworker.model_runner = types.SimpleNamespace(model=Model(64, 16))\n"
    "whole = io.BytesIO()\ntorch.save({'weight': torch.arange(4096)}, whole)\n"
    "worker.update_weights_from_decoded_sparse_payload(whole.getvalue()[: len(whole.getvalue()) // 2])",
    "trl-answer": TRL
    + "def correct(completions, answer, **kwargs):\n    return [float(len(text) == float(right)) for text, right in zip(completions, answer)]\ngrpo(correct).train()",
    "trl-short-rewards": TRL
    + "def best(completions, **kwargs):\n    return [max(float(len(text)) for text in completions)]\ngrpo(best).train()",
    "trl-small-vocabulary": TRL
    + "model.resize_token_embeddings(64)\nsft([{'text': 'one two three'}]).train()",
    "trl-nan-weights": TRL
    + "with torch.no_grad():\n    model.get_output_embeddings().weight.fill_(float('nan'))\ngrpo().train()",
    "trl-no-checkpoint": TRL + "sft([{'text': 'one two'}]).train(resume_from_checkpoint=True)",
    "trl-cut-checkpoint": TRL + "sft([{'text': 'one two'}], save_strategy='steps', save_steps=2).train()\n"
    "path = 'out/checkpoint-2/model.safetensors'\nos.truncate(path, os.path.getsize(path) // 2)\n"
    "sft([{'text': 'one two'}]).train(resume_from_checkpoint='out/checkpoint-2')",
    "trl-dpo-column": TRL + "DPOTrainer(model=model, processing_class=tokenizer, args=DPOConfig(**shared),\n"
    "    train_dataset=Dataset.from_dict({'prompt': ['a'] * 16, 'chosen': ['b'] * 16, 'negative': ['c'] * 16})).train()",
    "trl-no-vllm": TRL + "grpo(use_vllm=True).train()",
    "trl-bf16": TRL + "grpo(use_cpu=False, bf16=True, fp16=True).train()",
    "ray-import": provoke.RAY
    + "@ray.remote\nclass Trainer:\n    def __init__(self):\n        import flash_attn\n    def step(self):\n        return 1\nray.get(Trainer.remote().step.remote())",
    "ray-memory": "import os\nos.environ['RAY_memory_usage_threshold'] = '0.02'\nos.environ['RAY_memory_monitor_refresh_ms'] = '100'\n"
    + provoke.RAY
    + "@ray.remote(max_retries=0)\ndef load():\n    import time\n    rows = [bytes(10 ** 8) for _ in range(8)]\n    time.sleep(20)\nray.get(load.remote())",
    "ray-shapes": provoke.RAY
    + "import torch\n@ray.remote\nclass Policy:\n    def __init__(self, width):\n        self.layer = torch.nn.Linear(width, 2)\n    def score(self, rows):\n        return self.layer(rows)\n"
    "policies = [Policy.remote(width) for width in (4, 5)]\nray.get([policy.score.remote(torch.ones(2, 4)) for policy in policies])",
    "ray-segfault": provoke.RAY
    + "import ctypes\n@ray.remote(max_retries=0)\ndef kernel():\n    return ctypes.string_at(0)\nray.get(kernel.remote())",
    "ray-unreachable": "import ray\nray.init(address='127.0.0.1:29742')",
    "ray-lock": provoke.RAY
    + "import threading\n@ray.remote\ndef step(batch):\n    return batch\nray.get(step.remote({'lock': threading.Lock()}))",
    "vllm-length": "from vllm import LLM\nLLM(model='model', max_model_len=10**6, enforce_eager=True)",
    "vllm-memory": "from vllm import LLM\nif __name__ == '__main__':\n    LLM(model='model', gpu_memory_utilization=0.9999, kv_cache_memory_bytes=10**14)",
    "vllm-no-model": "from vllm import LLM\nLLM(model='./no/such/model')",
    "vllm-option": "from vllm import LLM\nLLM(model='model', tensor_parallel_sizes=2)",
    "vllm-damaged": "import pathlib, shutil\nfrom vllm import LLM\nif __name__ == '__main__':\n    shutil.copytree('model', 'copy')\n"
    "    pathlib.Path('copy/model.safetensors').write_bytes(b'x' * 64)\n"
    "    LLM(model='copy', enforce_eager=True, max_model_len=64)",
    "vllm-shape": "import shutil\nfrom safetensors.torch import load_file, save_file\nfrom vllm import LLM\nif __name__ == '__main__':\n    shutil.copytree('model', 'copy')\n"
    "    weights = load_file('copy/model.safetensors')\n    weights['model.embed_tokens.weight'] = weights['model.embed_tokens.weight'][:, :-8].contiguous()\n"
    "    save_file(weights, 'copy/model.safetensors', metadata={'format': 'pt'})\n    LLM(model='copy', enforce_eager=True, max_model_len=64)",
    "vllm-token": "from vllm import LLM, TokensPrompt\nif __name__ == '__main__':\n    LLM(model='model', enforce_eager=True, max_model_len=64).generate(TokensPrompt(prompt_token_ids=[3, 10**6]))",
    "vllm-refit": "import torch\nfrom vllm import LLM\nif __name__ == '__main__':\n    engine = LLM(model='model', enforce_eager=True, max_model_len=64)\n"
    "    engine.collective_rpc('reload_weights', kwargs={'weights_iterator': [('model.embed_tokens.weight', torch.ones(8, 4))]})",
    "vllm-port": "import socket, sys\nfrom subprocess import run\nother = socket.socket()\nother.bind(('127.0.0.1', 29743))\nother.listen()\n"
    "run([sys.executable, '-m', 'vllm.entrypoints.openai.api_server', '--model', 'model', '--enforce-eager', '--host', '127.0.0.1', '--port', '29743'])",
    "seed-bridge": "from megatron.bridge import AutoBridge\nAutoBridge.from_hf_pretrained('model')",
    "seed-lora": "from peft import LoraConfig, get_peft_model\nfrom transformers import AutoModelForCausalLM\n"
    "get_peft_model(AutoModelForCausalLM.from_pretrained('model'), LoraConfig(target_modules=['linear_qkv', 'linear_proj']))",
    "seed-hub-limit": "import http.server, os, threading\nclass Busy(http.server.BaseHTTPRequestHandler):\n    def do_GET(self):\n        self.send_response(429)\n        self.send_header('Content-Length', '0')\n        self.end_headers()\n    do_HEAD = do_GET\n    def log_message(self, *words):\n        pass\n"
    "server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Busy)\nthreading.Thread(target=server.serve_forever, daemon=True).start()\n"
    "os.environ.update(HF_HUB_OFFLINE='0', HF_ENDPOINT=f'http://127.0.0.1:{server.server_port}')\n"
    "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('openai-community/gpt2')",
    "seed-hub-down": "import os\nos.environ.update(HF_HUB_OFFLINE='0', HF_ENDPOINT='http://127.0.0.1:29744')\n"
    "from huggingface_hub import snapshot_download\nsnapshot_download('openai-community/gpt2')",
}
POLICY = """
import importlib.util, os
if importlib.util.find_spec("nemo_stub"):  # stands in for packages of NeMo RL that are not installed
    import nemo_stub
os.environ["TORCH_CUDA_ARCH_LIST"] = "9.0"
from nemo_rl.models.policy.lm_policy import Policy
class Cluster:
    def world_size(self):
        return 4
parallel = dict(enabled=True, tensor_model_parallel_size=4, pipeline_model_parallel_size=1, context_parallel_size=1,
    tensor_parallel_size=4, converter_type="Qwen2ForCausalLM", _v2=True)
config = dict(megatron_cfg=parallel, dtensor_cfg=dict(parallel, enabled=BOTH), train_micro_batch_size=4, logprob_batch_size=8,
    model_name="model")
Policy(cluster=Cluster(), config=config, tokenizer=None)
"""
PROGRAMS |= {
    "seed-tp-guard": POLICY.replace("BOTH", "False"),
    "seed-two-backends": POLICY.replace("BOTH", "True"),
}
TORCHRUN: dict[str, str] = {
    "torchrun-counts": GLOO + "dist.all_reduce(torch.ones(4 + 4000 * rank))\nprint('done')",
    "torchrun-waits": GLOO + "if rank == 1:\n    time.sleep(25)\ndist.all_reduce(torch.ones(4))",
    "torchrun-import": "import apex\n" + GLOO,
    "torchrun-nan": GLOO
    + "torch.autograd.set_detect_anomaly(True)\nscale = torch.tensor(float(1 - rank), requires_grad=True)\nloss = (scale * 0).sqrt() * 0\nloss.backward()\ndist.all_reduce(scale.grad)",
    "torchrun-state": GLOO
    + "if rank == 1:\n    torch.save({'a': torch.ones(9)}, 'state.pt')\n    os.truncate('state.pt', 300)\n    torch.load('state.pt')\ndist.barrier()",
    "torchrun-batch": GLOO
    + "batch = {'input_ids': torch.ones(2, 4)}\nif rank == 1:\n    loss = batch['labels'].sum()\ndist.barrier()",
}
SHELL: dict[str, str] = {
    "torchrun-alone": f"{sys.executable} -m torch.distributed.run --nnodes 2 --node-rank 1 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29745 --rdzv-conf join_timeout=5,timeout=5 train.py",
    "seed-link": "printf 'int helpers;\\n' > helpers.cpp\ng++ -shared -fPIC helpers.cpp -o /dev/full",
    # As in the Makefile of Megatron-core's data helpers: without python3-config the library gets a name that is no module.
    "seed-helpers": "printf 'int helpers;\\n' > helpers.cpp\nmkdir tools; ln -s $(which g++ make sh as ld) tools/\n"
    "printf 'LIBEXT := $(shell python3-config --extension-suffix)\\nhelpers_cpp$(LIBEXT): helpers.cpp\\n\\tg++ -shared -fPIC helpers.cpp -o $@\\n' > Makefile\n"
    f"PATH=tools:/usr/lib/gcc make\nexec {sys.executable} -c 'import helpers_cpp'",
}
# Programs of two ranks under srun.
SLURM: dict[str, str] = {
    "srun-damaged": "import os\nfrom safetensors.torch import load_file\nprint('loading', flush=True)\nif os.environ['SLURM_PROCID'] == '1':\n    open('model-1.safetensors', 'wb').write(b'x' * 64)\n    load_file('model-1.safetensors')",
    "srun-device": "import os, torch\nprint('rank', os.environ['SLURM_PROCID'], flush=True)\nif os.environ['SLURM_PROCID'] == '1':\n    torch.ones(2, device='cuda')",
    "srun-data": "import os\nfrom datasets import load_dataset\nif os.environ['SLURM_PROCID'] == '0':\n    load_dataset('json', data_files='/data/train.jsonl')",
}


def main() -> int:
    """Provoke what is named."""
    provoke.SECONDS = 500
    provoke.PROGRAMS.clear()
    provoke.PROGRAMS.update(PROGRAMS)
    provoke.TORCHRUN.clear()
    provoke.TORCHRUN.update(TORCHRUN)
    provoke.SHELL.clear()
    provoke.SHELL.update(SHELL)
    for name, program in SLURM.items():
        write = f"cat > program.py <<'PROGRAM_ENDS'\n{program}\nPROGRAM_ENDS\n"
        provoke.SHELL[name] = f"{write}srun --label --ntasks 2 {sys.executable} program.py"
    return provoke.main()


if __name__ == "__main__":
    sys.exit(main())
