"""For pytest: a test that fails first says what it finds, in the words of its docstring."""

import inspect

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    says = inspect.getdoc(getattr(item, "function", None))
    if report.failed and says:
        report.longrepr = f"{says}\n\n{report.longreprtext}"
    return report
