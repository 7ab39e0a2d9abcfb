"""A run of two processes: the trainer logs a step every few milliseconds, and says when its worker is gone.

python toy_run.py LOGS NUM_STEPS names|forgets|waits|ignores|drifts
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

logs, num_steps, manner = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
logs.mkdir(parents=True, exist_ok=True)
time.sleep(float(os.environ.get("TOY_IMPORTS_SECONDS", "0")))
done = len(list(logs.glob("train_data_step*.jsonl")))
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(logs / "parts.json").write_text(json.dumps({"trainer": os.getpid(), "worker/0": worker.pid}))
try:
    for step in range(done + 1, num_steps + 1):
        time.sleep(0.02)
        (logs / f"train_data_step{step}.jsonl").write_text("{}\n")
        with (logs / "metrics.jsonl").open("a") as file:
            drift = 0.5 if manner == "drifts" and done else 0.0
            file.write(json.dumps({"step": step, "loss": 1 / step + drift}) + "\n")
        print(f"step {step} done", flush=True)
        if worker.poll() is not None and manner != "ignores":
            if manner == "waits":
                time.sleep(600)
            sys.exit("worker/0 was lost" if manner == "names" else "something went wrong")
finally:
    worker.kill()
    worker.wait()
