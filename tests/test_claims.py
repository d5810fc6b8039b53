"""The tables of the documents against the loaded bundle: no function, parameter or original name is left out."""

import inspect
import subprocess
import sys
from operator import attrgetter
from types import SimpleNamespace

import pytest
import torch
from claims import named_tests
from claims_features import FEATURES, NOT_SHOWN, PLAIN, WAYS
from claims_migration import PACKAGES
from claims_run import Claims, name_of

ORIGINALS = {
    f"{package.name}.{original.names[0]}": (package, original) for package in PACKAGES for original in package.originals
}
POSITIONAL, KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def of(*verdicts):
    """The keys of `ORIGINALS` with one of some verdicts."""
    return [key for key, (_, original) in ORIGINALS.items() if original.verdict in verdicts]


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row.functions[0])
def test_every_parameter_is_in_the_row_of_its_function(padfree, row):
    taken = {name for function in row.functions for name in inspect.signature(attrgetter(function)(padfree)).parameters}
    claimed = {name for cell in row.cells() for name in cell.arguments}
    assert claimed == taken


def test_every_public_name_has_a_row(padfree):
    rows = [name for row in FEATURES for name in row.functions] + [name for way in WAYS for name in way.arguments]
    modules = {name.partition(".")[0] for name in rows if "." in name}
    public = [name for name in padfree.__all__ if name not in modules]
    public += [f"{module}.{name}" for module in modules for name in getattr(padfree, module).__all__]
    assert sorted([*rows, *PLAIN, *NOT_SHOWN]) == sorted(public)


def apart(original, ours):
    """``(lacks, by_name)``: parameters of ``original`` that ``ours`` does not take, and those it takes by name only."""
    places = [name for name, parameter in ours.parameters.items() if parameter.kind == POSITIONAL]
    strays = any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in ours.parameters.values())
    lacks, by_name = [], []
    for place, (name, parameter) in enumerate(original.parameters.items()):
        mine = ours.parameters.get(name)
        if parameter.kind == inspect.Parameter.VAR_KEYWORD:
            lacks += [] if strays else [f"**{name}"]
        elif (mine is None and not strays) or (mine is not None and mine.default != parameter.default):
            lacks.append(name)
        elif places[place : place + 1] != [name]:
            by_name.append(name)
    return tuple(lacks), tuple(by_name)


def signature_of(text):
    """``inspect.Signature`` of a recorded parameter list."""
    scope = {"torch": torch}
    exec(f"def original({text}): pass", scope)
    return inspect.signature(scope["original"])


def extra(original, ours):
    """Parameters that only ours has, other than keyword-only ones with a default: they would break a call."""
    return [
        name
        for name, parameter in ours.parameters.items()
        if name not in original.parameters
        and parameter.kind != inspect.Parameter.VAR_KEYWORD
        and not (parameter.kind == KEYWORD and parameter.default is not inspect.Parameter.empty)
    ]


def signatures(padfree, key):
    """An original, the signature that was recorded of it, and that of this bundle's functions: its names share it."""
    package, original = ORIGINALS[key]
    found = [inspect.signature(getattr(package.place(padfree, original), name)) for name in original.names]
    assert all(one.parameters == found[0].parameters for one in found)
    return original, signature_of(original.signature), found[0]


@pytest.mark.parametrize("key", of("same"))
def test_same_takes_every_call_of_the_original(padfree, key):
    original, theirs, ours = signatures(padfree, key)
    assert apart(theirs, ours) == (original.lacks, original.by_name) == ((), ())
    assert extra(theirs, ours) == []
    assert original.tests


@pytest.mark.parametrize("key", of("differs"))
def test_differs_lacks_what_it_says(padfree, key):
    original, theirs, ours = signatures(padfree, key)
    assert apart(theirs, ours) == (original.lacks, original.by_name)
    assert extra(theirs, ours) == []
    assert original.words
    assert original.tests


@pytest.mark.parametrize("key", of("refused"))
def test_refused_is_not_there(padfree, key):
    package, original = ORIGINALS[key]
    for name in original.names:
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(package.place(padfree, original), name)
    assert original.words


REFUSED = """
import sys, kernels
padfree = kernels.get_kernel("padfree/padfree-flash2", version=1, backend="cpu")
padfree.install_as_packages([sys.argv[1]])
for word in sys.argv[2:]:
    home, _, name = word.rpartition(".")
    try:
        exec(f"from {home} import {name}")
    except ImportError as error:  # names what is missing, and this bundle as the one that lacks it
        said = str(error)
        assert f"cannot import name '{name}' from '{home}'" in said or f"{home} is not in" in said, said
        assert padfree.__name__ in said or padfree.__file__ in said, said
    else:
        raise SystemExit(f"{word} must raise")
"""


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_refused_is_named_under_the_name_of_its_package(padfree, package):
    """In a process of its own, where ``import fla`` finds this bundle."""
    refused = [f"{o.home}.{name}" for o in package.originals if o.verdict == "refused" for name in o.names]
    command = [sys.executable, "-c", REFUSED, package.name, *refused]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_every_name_of_a_package_has_a_verdict(package):
    judged = {name for original in package.originals for name in original.names}
    assert judged == {name for names in package.exports.values() for name in names}
    for original in package.originals:
        assert set(original.names) <= set(package.exports[original.home]), original.home
        assert original.verdict in ("same", "differs", "refused")


def test_apart_sees_what_is_missing_moved_or_of_another_default():
    theirs = signature_of("a, b=1, c=None, **more")
    assert apart(theirs, signature_of("a, b=1, c=None")) == (("**more",), ())
    assert apart(theirs, signature_of("a, c=None, b=1, **rest")) == ((), ("b", "c"))
    assert apart(theirs, signature_of("a, b=2, c=None, **rest")) == (("b",), ())
    assert apart(theirs, signature_of("a, *, b=1, c=None, **rest")) == ((), ("b", "c"))
    assert apart(theirs, signature_of("a, c=None, **rest")) == ((), ("b", "c"))
    assert apart(theirs, signature_of("a, c=None")) == (("b", "**more"), ("c",))
    assert extra(theirs, signature_of("a, b=1, c=None, d=None, *, e=1, **rest")) == ["d"]


def run_of(*outcomes, exitstatus=pytest.ExitCode.OK):
    """What the plugin leaves behind after a run of ``(node id, passed)``."""
    plugin = Claims({"test_a.py::test_one", "test_a.py::test_two"})
    for nodeid, passed in outcomes:
        plugin.pytest_runtest_logreport(SimpleNamespace(when="call", passed=passed, nodeid=nodeid))
    session = SimpleNamespace(items=[SimpleNamespace(nodeid=nodeid) for nodeid, _ in outcomes], exitstatus=exitstatus)
    plugin.pytest_sessionfinish(session, exitstatus)
    return session.exitstatus, plugin.unproven


def test_a_claim_whose_tests_were_all_skipped_fails_the_run():
    one, two = "tests/test_a.py::test_one[x/y-1]", "tests/test_a.py::test_two"
    assert run_of((one, True), (two, True)) == (pytest.ExitCode.OK, [])
    assert run_of((one, True)) == (pytest.ExitCode.OK, [])
    assert run_of((one, True), (one, False), (two, True)) == (pytest.ExitCode.OK, [])
    assert run_of((one, True), (two, False)) == (pytest.ExitCode.TESTS_FAILED, ["test_a.py::test_two"])
    interrupted = pytest.ExitCode.INTERRUPTED
    assert run_of((one, True), (two, False), exitstatus=interrupted) == (interrupted, [])


def test_this_run_is_watched(request):
    assert request.config.pluginmanager.get_plugin("claims").named == named_tests()
    assert name_of(request.node.nodeid) == "test_claims.py::test_this_run_is_watched"
