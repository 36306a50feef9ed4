"""The commands about plugins: `plugins`, `plugin new`, `plugin check`, `plugin doctor`, and `stubs`."""

import contextlib
import os
import re
import signal
import sys

from kerastf import plugins

# How absl marks information, and what it says before the first line.
NOTICE = re.compile(rb"I\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] |WARNING: All log messages before absl::InitializeLog")


def add_commands(add):
    """Adds the commands to a parser.

    Args:
        add: Takes a name, what to run and a help text, and returns the command's own parser.
    """
    add("plugins", _list, "List the installed plugins, their state and what they offer. Imports nothing.")

    plugin = add("plugin", None, "Begin a plugin, check one, or find out what is wrong with those installed.")
    parts = plugin.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def part(name, run, help):
        command = parts.add_parser(name, help=help, description=help, allow_abbrev=False)
        command.set_defaults(run=run)
        return command

    command = part("new", _new, "Write a package of one small, sound block to start from.")
    command.add_argument("name", help="name of the plugin, such as mine; its package is kerastf-mine")
    command.add_argument("--kind", required=True, help=f"what it offers: {', '.join(plugins.KINDS)}")
    command.add_argument("--block", help="name of the block (that of the example it begins with)")
    command.add_argument("--out", default=".", help="folder to make the package's folder in (here)")

    command = part("check", _check, "Check packaging, metadata and contracts of a plugin. Status 1 if a check fails.")
    command.add_argument(
        "where", nargs="?", default=".", help="its folder, or the namespace of an installed one (here)"
    )
    command.add_argument("--full", action="store_true", help="also the archives it is published as, and full contracts")

    command = part("doctor", _doctor, "Load each installed plugin and explain what is wrong. Status 1 if something is.")
    command.add_argument("namespace", nargs="?", help="only this one (all)")

    command = add("stubs", _stubs, "Write type stubs, so that editors complete the names and options of what is here.")
    command.add_argument("--out", default="typings", help="folder for them (typings, where editors look)")


def _found():
    found = [p for p in plugins.discover().values() if p.namespace]
    if not found:
        print("No plugins are installed. A plugin is a package with entry points in groups such as kerastf.attention.")
    return found


def _list(options):
    from kerastf.plugin_tools.doctor import headline, offers

    for plugin in _found():
        _ = plugin.manifest  # notes what is wrong with it
        print(headline(plugin))
        print(f"  offers {offers(plugin)}")
        for problem in [*filter(None, [plugin.incompatibility]), *plugin.problems]:
            print(f"  problem: {problem}")


def _new(options):
    from kerastf.plugin_tools import scaffold

    made = scaffold.new(options.name, options.kind, block=options.block, out=options.out)
    print(f"{made} is a package of one {options.kind}. Next:\n")
    for line in (f"cd {made}", 'python -m pip install -e ".[test]"', "python -m pytest", "kerastf plugin check --full"):
        print(f"  {line}")


def _check(options):
    quiet()
    from kerastf.plugin_tools.checks import check_plugin

    report = check_plugin(options.where, level="full" if options.full else "quick")
    print(report)
    for verdict in report.verdicts:
        if verdict.details:
            print(f"\n{verdict.name}:\n{verdict.details}")
    if report.ok:
        rest = "" if options.full else " Before you publish it: kerastf plugin check --full"
        print(f"\nIt is sound, as far as these checks see.{rest}")
        return 0
    print(f"\nIt is not sound yet: {', '.join(report.failed)}. Each line above says what to do.")
    return 1


def _doctor(options):
    quiet()
    from kerastf.plugin_tools.doctor import examine

    findings = examine(options.namespace) if options.namespace or _found() else []
    for finding in findings:
        print(finding)
    return 1 if any(f.sick for f in findings) else 0


def _stubs(options):
    quiet()
    from kerastf.plugin_tools.stubs import write_stubs

    count = write_stubs(options.out)
    print(f"{options.out}: stubs of {count} modules. Run it again when you install a plugin.")


def quiet():
    """TensorFlow's notices at its import and its advice on retracing are not for users of a command."""
    import logging

    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    if "keras" not in sys.modules and os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0":
        with without_notices():
            import keras  # noqa: F401


@contextlib.contextmanager
def without_notices():
    """Within the block, lines that C++ code writes to standard error are left out if they are marked as information.

    TensorFlow 2.21 writes them while it is imported, whatever TF_CPP_MIN_LOG_LEVEL says. A process of its own passes
    the other lines on, so that they are shown even if this one dies.
    """
    if sys.stderr is None or not hasattr(os, "fork"):
        yield
        return
    sys.stderr.flush()
    shown, (reader, writer) = os.dup(2), os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other process, which may have more to say
        try:
            _pass_on(reader, shown)
        finally:
            os._exit(0)
    os.close(reader)
    os.dup2(writer, 2)
    os.close(writer)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(shown, 2)
        os.close(shown)
        os.waitpid(child, 0)


def _pass_on(reader, writer):
    with open(reader, "rb") as lines:
        for line in lines:
            if not NOTICE.match(line):
                os.write(writer, line)
