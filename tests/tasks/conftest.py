"""What several of the stages' tests need."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def dask_address() -> Iterator[str]:
    """The address of a Dask scheduler with two workers, each a process of one thread."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address=None,
        worker_dashboard_address=None,
    ) as cluster:
        yield cluster.scheduler_address
