"""Settings of all tests: in CI a skip is a failure, and Hypothesis draws the same examples."""

import os

import hypothesis
import pytest

# Schemathesis' plugin imports these when a session has ended. Rewritten then, with all that a
# session leaves for the collector, CPython 3.11 now and then fails ("AST constructor recursion
# depth mismatch"), and with it the whole run.
import schemathesis.reporting.html.writer
import schemathesis.reporting.junitxml  # noqa: F401

pytest_plugins = ["tests.support.plugin"]

hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)

IN_CI = os.environ.get("CI") == "true"
hypothesis.settings.load_profile("ci" if IN_CI else "default")


class NoSkips:
    """Fails the session when a test or a module was skipped, and lists them."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skipped:
            terminalreporter.section("skipped tests fail a CI run", red=True)
            for nodeid in sorted(self.skipped):
                terminalreporter.line(nodeid)


def pytest_configure(config: pytest.Config) -> None:
    if IN_CI:
        config.pluginmanager.register(NoSkips(), "no-skips")
