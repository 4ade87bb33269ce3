"""pytest's option --kvbound-report FILE: what all assertions of kvbound.testing found, as one document for `kvbound report`."""
import os
from pathlib import Path

_collected = None  # results of the run, each with its test; None: nobody asks for them


def collect(result):
    """Called by the assertions of kvbound.testing with every CheckResult."""
    if _collected is not None:
        _collected.append((result._native, os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]))


def pytest_addoption(parser):
    parser.getgroup("kvbound").addoption("--kvbound-report", metavar="FILE", type=Path,
                                         help="write what kvbound's assertions found: a document for `kvbound report`")


def pytest_configure(config):
    global _collected
    if config.getoption("--kvbound-report"):
        _collected = []


def pytest_sessionfinish(session):
    path = session.config.getoption("--kvbound-report")
    if path and _collected is not None:
        from kvbound import _native
        path.write_text(_native.document(_collected), "utf-8")
