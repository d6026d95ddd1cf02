"""Rules for the whole suite."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

# Before anything imports torch: threads that wait by spinning made a test of 5 s take 290 on two busy cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest

ALLOWED_SKIPS = (
    # The data lie beside a developer's checkout and are not part of the repository.
    "the real data are not here",
    # Only root may mount, and not in every container.
    "no small file system can be mounted here",
    # The one program that the package index does not have; .ci/run installs Debian's where that can be reached.
    "chromium not installed",
    # Networks are shaped by root, with ip, tc and iptables, where the kernel lets it.
    "no network namespaces here",
)
"""With `CI` set, a test that is skipped for any other reason fails the run: what is skipped is not known to work."""


@pytest.fixture(scope="session")
def benchmark_script() -> Callable[[str], ModuleType]:
    """Loads a script of ``benchmarks/`` by its name; the folder is no package."""

    def load(name: str) -> ModuleType:
        path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name in refused(terminalreporter):
        terminalreporter.write_line(f"skipped in CI: {name}", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and refused(reporter) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def refused(reporter: pytest.TerminalReporter) -> list[str]:
    if not os.environ.get("CI"):
        return []
    return [
        f"{report.nodeid}: {report.longrepr}"
        for report in reporter.stats.get("skipped", [])
        if not any(reason in str(report.longrepr) for reason in ALLOWED_SKIPS)
    ]
