"""A process whose Ray loses its head and gets it back on the same port, with a cluster that is written to meanwhile.

`python -m tests.ray.head_loss DATA_DIR`, under RAY_REDIS_ADDRESS: a Ray keeps there what its head knows. The last line
says what a client and the nodes noticed.
"""

import json
import logging
import subprocess
import sys
import time

import rayka
from rayka.actors.ray_head import head_address, is_listening
from rayka.cluster import Cluster
from tests.ray.support import RAYKA
from tests.rays import connected_ray

AWAY_S = 3.0
_KNOCK_S = 1.0


def main(data_dir: str) -> None:
    """See the module."""
    logging.basicConfig(level=logging.ERROR)
    with connected_ray(head_cpus=8) as rays:
        with Cluster.start(name="headless", data_dir=data_dir) as cluster:
            pids = [each.pid for each in cluster.describe().nodes]
            with rayka.Admin(cluster=cluster) as admin, rayka.Producer(cluster=cluster) as producer:
                admin.create_topic("words", partitions=1)
                acknowledged = _send(producer, 1.0)
                rays.head_node.kill_gcs_server()
                is_away = not is_listening(head_address(), _KNOCK_S)
                while_away = _send(producer, AWAY_S)
                admin.create_topic("made-without-a-head", partitions=1)
                command = [*RAYKA, "status", "--address", head_address()]
                asked = subprocess.run(command, capture_output=True, text=True, check=False)
                rays.head_node.start_gcs_server()
                acknowledged += while_away + _send(producer, 1.0)
            described = cluster.describe()
            said = {
                "is_away": is_away and asked.returncode == 1 and "no Ray answers" in asked.stderr,
                "is_a_start_advised": "rayka start" in asked.stderr,
                "acknowledged_while_away": while_away,
                "is_nothing_lost": len(list(rayka.read("words", cluster=cluster))) == acknowledged,
                "are_processes_the_same": [each.pid for each in described.nodes] == pids,
                "is_running": described.is_running,
            }
    print(json.dumps(said))


def _send(producer: rayka.Producer, duration_s: float) -> int:
    """How many records were acknowledged in that time; each within seconds, or it raises."""
    count, end_s = 0, time.monotonic() + duration_s
    while time.monotonic() < end_s:
        producer.send("words", value=b"%d" % count).result(timeout=10)
        count += 1
    return count


if __name__ == "__main__":
    main(sys.argv[1])
