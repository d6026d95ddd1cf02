"""How long a deployed chain takes when everything is reused: the server's own figure, and each stage's state.

    sahajflow up
    python benchmarks/deployed_run.py [--recipe demo] [--set KEY=VALUE ...] [--store DIR]

Starts runs of `chain/local` one after the other, as the form on the server's page does. The first makes what is
missing and is not counted; of five more it prints the median and the range of `total_run_time`, in seconds, and the
time from asking for the run until its end, which also holds the worker's polling and the process's start.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

from flows import local_server

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

RUNS = 5


def ended(client: SyncPrefectClient, parameters: dict[str, Any]) -> tuple[float, float, list[str]]:
    """Run time, time until the end in all, and the states of the tasks, of one new run."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    deployed = client.read_deployment_by_name("chain/local")
    asked = time.perf_counter()
    run = client.create_flow_run_from_deployment(deployed.id, parameters=parameters)
    while run.state is None or not run.state.is_final():
        time.sleep(0.2)
        run = client.read_flow_run(run.id)
    waited = time.perf_counter() - asked
    if not run.state.is_completed():
        raise SystemExit(f"{run.name}: {run.state.name}: {run.state.message}")
    tasks = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])))
    return run.total_run_time.total_seconds(), waited, sorted(f"{task.name} {task.state_name}" for task in tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--store", help="absolute path of the store (default: the usual one)")
    arguments = parser.parse_args()
    parameters = {"recipe": arguments.recipe, "set_": arguments.set, "store": arguments.store}
    local_server.use(local_server.ensure())
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        ended(client, parameters)
        runs = [ended(client, parameters) for _ in range(RUNS)]
    for number, name in enumerate(("total_run_time", "until the end in all")):
        times = [run[number] for run in runs]
        print(
            f"{name:<22} median {statistics.median(times):.2f} s  ({min(times):.2f} to {max(times):.2f}, n = {RUNS})"
        )
    print("last run:", ", ".join(runs[-1][2]))


if __name__ == "__main__":
    main()
