"""For pytest: `--kerastf-plugin NAMESPACE` adds the contract of every name of that plugin to the tests.

Every pytest in an environment with kerastf imports this file, so it imports nothing but pytest itself.
"""

import pytest


def pytest_addoption(parser):
    group = parser.getgroup("kerastf")
    group.addoption(
        "--kerastf-plugin", action="append", default=[], metavar="NAMESPACE",
        help="add the contracts of every name that this installed plugin offers (may be given again)",
    )  # fmt: skip
    group.addoption(
        "--kerastf-level", choices=("quick", "full"), default="full", help="how thoroughly (full: XLA, a new process)"
    )
    parser.addini("kerastf_plugin", "namespaces whose contracts are always tests", type="args", default=[])


def pytest_configure(config):
    wanted = [*config.getini("kerastf_plugin"), *config.getoption("--kerastf-plugin")]
    if wanted:
        config.pluginmanager.register(Contracts(list(dict.fromkeys(wanted))), "kerastf-contracts")


class Contracts:
    """Adds one test per name of the wanted plugins."""

    def __init__(self, namespaces):
        self.namespaces = namespaces

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session, config, items):
        collector = ContractCollector.from_parent(session, name="kerastf", nodeid="kerastf")
        for namespace in self.namespaces:
            items += collector.of(namespace)
        session.testscollected = len(items)


class ContractCollector(pytest.Collector):
    """The contracts, as a place in the tree of tests."""

    def collect(self):
        return []

    def of(self, namespace):
        """One test per name of a plugin. Imports no framework."""
        from kerastf import plugins

        space = plugins.normalise(namespace)
        found = [p for p in plugins.discover().values() if p.namespace and p.namespace == space]
        if not found:
            names = ", ".join(sorted(p.namespace for p in plugins.discover().values() if p.namespace)) or "none"
            raise pytest.UsageError(f"No plugin has the namespace `{namespace}`. Installed: {names}.")
        return [
            ContractItem.from_parent(self, name=f"contract[{e.kind}:{e.id}]", entry=e) for p in found for e in p.entries
        ]


class ContractItem(pytest.Item):
    """The contract of one name."""

    def __init__(self, *, entry, **kwargs):
        super().__init__(**kwargs)
        self.entry = entry

    def runtest(self):
        from kerastf import testing

        subject = testing.subject(self.entry.kind, self.entry.id)
        testing.run_checks(subject, self.config.getoption("--kerastf-level"))

    def repr_failure(self, excinfo, style=None):
        from kerastf.testing import ContractError

        if isinstance(excinfo.value, ContractError | ImportError):
            return str(excinfo.value).strip()
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        return "kerastf", None, f"the contract of {self.entry.kind} {self.entry.id}"
