"""A Ray cluster of two nodes with a job server; test_ray_trials.py starts it where Ray is, and commands it by lines.

It prints the server's address. `where ID ID ...` prints which of these jobs run on the second node, and `lose` removes
that node; the end of its input ends the cluster.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster
from ray.job_submission import JobSubmissionClient


def main() -> int:
    """Run the cluster until the input ends."""
    port = int(sys.argv[1])
    head = {"num_cpus": 2, "include_dashboard": True, "dashboard_port": port, "dashboard_host": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        second = cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        address = f"http://127.0.0.1:{port}"
        print(address, flush=True)
        for line in sys.stdin:
            words = line.split()
            if words[0] == "where":
                client = JobSubmissionClient(address)
                nodes = [client.get_job_info(job).driver_node_id for job in words[1:]]
                there = [job for job, node in zip(words[1:], nodes, strict=True) if node == second.node_id]
                print(" ".join(there), flush=True)
            elif words[0] == "lose":
                cluster.remove_node(second, allow_graceful=False)
                print("lost", flush=True)
    finally:
        cluster.shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
