"""The time of a swarm's members."""

import subprocess
import sys

CODE = """
import time
from tasks.pretraining.collaborative import averaging, optimizer, records, tracker
from tasks.pretraining.collaborative.process import even_time
import hivemind.averaging.averager, hivemind.dht.protocol, hivemind.utils.timed_storage

modules = (averaging, optimizer, records, tracker)
modules += (hivemind.averaging.averager, hivemind.dht.protocol, hivemind.utils.timed_storage)
now = time.time
assert all(module.get_dht_time is now for module in modules)
even_time()
assert all(abs(module.get_dht_time() - now()) < 0.1 for module in modules)
time.time = lambda: now() - 3600
assert all(abs(module.get_dht_time() - now()) < 0.1 for module in modules)
first = records.get_dht_time()
time.sleep(0.2)
assert 0.2 <= records.get_dht_time() - first < 5
assert not hivemind.utils.timed_storage.TimedStorage().store("key", 1, first - 1)
print("even")
"""


def test_hivemind_s_time_goes_on_evenly_though_the_clock_is_set_back() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", CODE], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "even\n", done.stderr
