"""`kerastf plugin check`: packaging, metadata and contracts of a plugin, each told in one line."""

import ast
import functools
import inspect
import re

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from kerastf import __version__, plugins, registry, testing
from kerastf.plugin_tools.archives import require_sound_archives
from kerastf.plugin_tools.project import Project, locate
from kerastf.testing.report import Broken, Check, ContractError, NotAsked, Report, Warned, check, run_check

PLUGIN_CHECKS: list[Check] = []
SLOW_SECONDS = 1.0
MANIFEST_KEYS = set(plugins.FACTS)

plugin_check = functools.partial(check, kinds=("plugin",), into=PLUGIN_CHECKS)


def check_plugin(where: str = ".", *, level: str = "quick", only: list[str] | None = None) -> Report:
    """Runs every check on a plugin, and then the contract of each name it offers.

    Args:
        where: Its folder, or the namespace of an installed plugin.
        level: `"quick"`, or `"full"` with the archives it is published as and the full contracts.
        only: Names of the checks to run; all by default.

    Returns:
        The report; `report.ok` says whether nothing fails.
    """
    project = locate(where, level)
    verdicts = [
        run_check(item, project)
        for item in [*PLUGIN_CHECKS, *_contracts(project)]
        if (only is None or item.name.partition(" ")[0] in only) and (item.level == "quick" or level == "full")
    ]
    version = f" {project.known.version}" if project.known.version else ""
    return Report(f"plugin `{project.id}` ({project.known.distribution}{version})", verdicts)


# --- what pyproject.toml says


@plugin_check("name", promise="its name gives a namespace of its own")
def name(project):
    space = project.id
    if not plugins.is_name(space) or space == plugins.LOCAL:
        raise Broken(
            f"the name {project.known.distribution} gives the namespace `{space}`, which is reserved or not a name. "
            "Choose a name such as kerastf-mine"
        )
    if not plugins.normalise(project.known.distribution).startswith("kerastf_"):
        raise Warned(f"{project.known.distribution} does not begin with kerastf-, which is how people find plugins")


@plugin_check("metadata", promise="version, description and Python versions are told")
def metadata(project):
    _ = project.source
    facts, dynamic = project.facts, project.facts.get("dynamic", ())
    for key in ("version", "description", "requires-python"):
        if not facts.get(key) and key not in dynamic:
            raise Broken(f"[project] in pyproject.toml says no `{key}`. Add it: an index shows it, and pip reads it")
    try:
        Version(facts.get("version", "0"))
        SpecifierSet(facts["requires-python"])
    except (InvalidVersion, InvalidSpecifier) as error:
        raise Broken(f'pyproject.toml: {error}. Write version = "0.1.0", requires-python = ">=3.11"') from None
    if "\n" in facts.get("description", "").strip():
        raise Broken("`description` in pyproject.toml must be one line. The long one is the README")


@plugin_check("readme", promise="an index can show its README")
def readme(project):
    readme = project.facts.get("readme")
    _ = project.source
    if readme is None:
        raise Broken('[project] in pyproject.toml names no README. Add readme = "README.md"')
    if isinstance(readme, dict) and "text" in readme:
        return
    file = readme["file"] if isinstance(readme, dict) else readme
    path = project.source / file
    if not path.is_file() or not path.read_text("utf-8").strip():
        raise Broken(f"pyproject.toml names {file} as README, and there is no such file with text in it")
    if path.suffix not in (".md", ".rst", ".txt"):
        raise Broken(f"an index cannot show {file}: write it as .md, .rst or .txt")


@plugin_check("license", promise="it says under which license it may be used")
def license(project):
    folder, given = project.source, project.facts.get("license")
    if not given:
        raise Broken(
            '[project] in pyproject.toml says no license. Add license = "MIT", or another of spdx.org/licenses'
        )
    if isinstance(given, str):
        try:
            canonicalize_license_expression(given)
        except InvalidLicenseExpression:
            raise Broken(f"license = {given!r} is not an identifier of spdx.org/licenses, such as MIT") from None
    patterns = project.facts.get("license-files", ["LICEN[CS]E*", "COPYING*"])
    if not any(found.is_file() for pattern in patterns for found in folder.glob(pattern)):
        raise Broken(f"there is no file with the text of the license. Looked for: {', '.join(patterns)}")


@plugin_check("requires", promise="it requires kerastf, from a version up to one that it does not know yet")
def requires(project):
    for line in project.known.requires:
        try:
            need = Requirement(line)
        except InvalidRequirement:
            raise Broken(f"the requirement {line!r} cannot be read") from None
        if plugins.normalise(need.name) != "kerastf":
            continue
        advice = f'Write "kerastf>={".".join(__version__.split(".")[:2])},<{int(__version__.split(".")[0]) + 1}"'
        if not any(part.operator in ("<", "<=", "==", "~=") for part in need.specifier):
            raise Broken(f"{line!r} has no upper bound, so a later kerastf may break it unannounced. {advice}")
        if not need.specifier.contains(__version__, prereleases=True):
            raise Broken(f"{line!r} leaves out kerastf {__version__}, which is installed here. {advice}")
        return
    raise Broken("it does not require kerastf. Add it to `dependencies` in pyproject.toml")


@plugin_check("entry_points", promise="its entry points have known kinds and sound names")
def entry_points(project):
    if not plugins.is_name(project.id) or project.id == plugins.LOCAL:
        raise NotAsked("it has no namespace")
    problems = [p for p in project.known.problems if "claimed by" not in p and "manifest" not in p]
    if problems:
        raise Broken("; ".join(problems))
    if not project.known.entries:
        raise Broken(
            'it offers nothing. Add to pyproject.toml: [project.entry-points."kerastf.norm"] name = "package:Class"'
        )


@plugin_check("tests", promise="its own tests try every name it offers")
def tests(project):
    found = [p for p in project.source.rglob("test_*.py") if not any(part.startswith(".") for part in p.parts)]
    if not found:
        raise Broken("it has no tests. Three lines do: kerastf plugin new shows them")
    pytest_options = project.text.get("tool", {}).get("pytest", {}).get("ini_options", {})
    text = "".join(p.read_text("utf-8") for p in found) + str(pytest_options.get("kerastf_plugin", ""))
    whole = pytest_options.get("kerastf_plugin") or "--kerastf-plugin" in str(pytest_options.get("addopts", ""))
    untried = [e.id for e in project.known.entries if e.id not in text]
    if untried and not whole:
        raise Broken(f"no test names {', '.join(untried)}. Add: check_block({project.known.entries[0].kind!r}, ...)")


# --- what is installed


@plugin_check("installed", promise="it is installed, and as pyproject.toml says")
def installed(project):
    if project.plugin is None:
        raise Broken(f"it is not installed, so its code was not tried. Run: python -m pip install -e {project.folder}")
    _ = project.source
    here, there = ({(e.kind, e.name, e.target) for e in p.entries} for p in (project.known, project.plugin))
    version = project.facts.get("version", project.plugin.version)
    if here != there or version != project.plugin.version:
        raise Broken(
            "what is installed is not what pyproject.toml says now. Run again: "
            f"python -m pip install -e {project.folder}"
        )


@plugin_check("rivals", promise="no other installed package claims its names")
def rivals(project):
    if project.plugin is None:
        raise NotAsked("it is not installed")
    claimed = [e for e in project.plugin.entries if e.rivals]
    if claimed:
        raise Broken(
            f"`{claimed[0].id}` is claimed by {claimed[0].rivals[0].owner} too, so neither gets it. Choose another "
            "name, or uninstall that package"
        )


@plugin_check("manifest", promise="kerastf.toml stands in the package and describes every name in it")
def manifest(project):
    entries, said = project.entries, project.plugin.manifest
    unread = [p for p in project.plugin.problems if "manifest" in p]
    if unread:
        raise Broken(unread[0])
    if not said:
        raise Broken("there is no kerastf.toml beside its __init__.py, so listing it shows names only. Write one")
    for entry in entries:
        if not entry.manifest.get("summary"):
            raise Broken(f"kerastf.toml says no summary of {entry.kind} `{entry.name}`: [{entry.kind}.{entry.name}]")
        foreign = sorted(set(entry.manifest) - MANIFEST_KEYS)
        if foreign:
            raise Broken(f"kerastf.toml has an unknown key `{foreign[0]}`. Known: {', '.join(sorted(MANIFEST_KEYS))}")
    offered = {(e.kind, e.name) for e in project.plugin.entries}
    taken = [(e, a) for e in entries for a in registry.aliases(e) if (e.kind, a) in offered]
    if taken:
        raise Broken(f"kerastf.toml: the alias `{taken[0][1]}` of `{taken[0][0].name}` is a name that is offered, too")
    extra = [(k, n) for k, names in said.items() for n in names if (k, n) not in offered]
    if extra:
        raise Broken("kerastf.toml describes [{}.{}], which no entry point offers. Remove it".format(*extra[0]))


# --- what its code does


@plugin_check("imports", promise="every name imports, and is a class")
def imports(project):
    _ = project.entries
    if project.loading.errors:
        raise Broken(next(iter(project.loading.errors.values())))


@plugin_check("side_effects", promise="importing it changes nothing but its own names")
def side_effects(project):
    _ = project.classes
    if project.loading.seconds is None:
        raise NotAsked("it had been imported before")
    if project.loading.changes:
        raise Broken("; ".join(project.loading.changes) + ". An import should only define things")


@plugin_check("import_time", promise="importing it is quick")
def import_time(project):
    _ = project.classes
    seconds = project.loading.seconds
    if seconds is not None and seconds > SLOW_SECONDS:
        raise Warned(f"importing it took {seconds:.1f} s beyond Keras. Import what is slow where it is used")


@plugin_check("frameworks", promise="it imports no framework but Keras, so it runs on every backend")
def frameworks(project):
    for folder in project.packages:
        for path in sorted(folder.rglob("*.py")):
            try:
                tree = ast.parse(path.read_text("utf-8"))
            except SyntaxError:
                continue  # told by `imports`
            for node in ast.walk(tree):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
                found = {n.partition(".")[0] for n in names} & {"tensorflow", "jax", "torch"}
                if found:
                    where = f"{path.relative_to(folder.parent)}, line {node.lineno}"
                    raise Warned(f"{where}, imports {found.pop()}. keras.ops does the same on every backend")


@plugin_check("docstrings", promise="its package and its classes say what they are")
def docstrings(project):
    for what, (entry, cls) in project.classes.items():
        if not (cls.__dict__.get("__doc__") or "").strip():
            raise Broken(f"{what}: the class {cls.__name__} has no docstring. kerastf info and editors show it")
        module = inspect.getmodule(cls)
        if not (getattr(module, "__doc__", "") or "").strip():
            raise Warned(f"{what}: the module {entry.target.partition(':')[0]} has no docstring")


@plugin_check("supports", promise="kerastf.toml and the code agree on what each name supports")
def supports(project):
    for what, (entry, cls) in project.classes.items():
        if not entry.manifest:
            continue  # told by `manifest`
        said, true = set(entry.manifest.get("supports", ())), set(getattr(cls, "supports", ()))
        if said != true:
            raise Broken(f"{what}: kerastf.toml says supports = {sorted(said)}, @register says {sorted(true)}")


@plugin_check("example", promise="what kerastf.toml gives as example makes each of them")
def example(project):
    for what, (entry, _) in project.classes.items():
        subject = testing.subject(entry.kind, entry.id)
        try:
            if entry.kind == "converter":
                subject.cls()  # its options are those of the models that it is tried on
            elif entry.kind == "model":
                subject.make()
            else:
                subject.new()
        except Exception as error:
            raise Broken(
                f"{what}: made with {subject.options or 'no options'}, it raises {type(error).__name__}: {error}. Give "
                f"options in kerastf.toml: example = {{ ... }}"
            ) from None


@plugin_check(
    "build", promise="its sdist and wheel build, hold the manifest, and an index would take them", level="full"
)
def build(project):
    require_sound_archives(project)


def _contracts(project: Project) -> list[Check]:
    """One check per name that the plugin offers: the contract of its kind."""
    promise = "keeps the contract of its kind" + (", in full" if project.level == "full" else "")
    return [
        Check(f"contract {e.kind} {e.id}", ("plugin",), "quick", promise, functools.partial(_contract, entry=e))
        for e in project.known.entries
    ]


def _contract(project: Project, entry: plugins.Entry) -> None:
    if not any(e.id == entry.id and e.kind == entry.kind for e, _ in project.classes.values()):
        raise NotAsked("it does not import")
    try:
        testing.run_checks(testing.subject(entry.kind, entry.id), project.level)
    except ContractError as error:
        told = "; ".join(f"{v.name}: {v.sentence}" for v in error.report.verdicts if v.outcome == "FAIL")
        more = " --full" if project.level == "full" else ""
        raise Broken(re.sub(r"\s+", " ", f"{told}. In detail: kerastf check {entry.id}{more}")) from None
