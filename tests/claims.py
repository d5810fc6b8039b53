"""What the tables of the documents are made of: words, and the tests that prove them.

`claims_features`, `claims_migration` and `claims_families` hold the rows; ``python -m bundle tables`` renders them into
README.md and docs/, and `make lint` fails where a document or a named test is not as they say. When the tests run, a
claim whose tests were all skipped fails the run (conftest.py). These modules import nothing but the standard library.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shown:
    """Words of a cell. ``tests``: ``test_x.py::test_y``, each must pass; ``arguments``: parameters they are about."""

    words: str
    tests: tuple[str, ...]
    arguments: tuple[str, ...] = ()


def shown(words, *tests, arguments=""):
    """A `Shown`; ``arguments`` are names apart by spaces."""
    return Shown(words, tests, tuple(arguments.split()))


@dataclass(frozen=True)
class Feature:
    """A row of the features table: functions that one kernel computes, ``module.function`` where a module holds them.

    ``op`` is the name in build.toml, whose sections say on which backends and instruction sets it is built; None where
    plain torch computes it. ``title`` replaces the list of functions.
    """

    functions: tuple[str, ...]
    op: str | None
    dtypes: Shown
    forward: Shown
    backward: Shown
    options: tuple[Shown, ...]
    title: str = ""

    def cells(self):
        """Every `Shown` of the row."""
        return (self.dtypes, self.forward, self.backward, *self.options)


@dataclass(frozen=True)
class Original:
    """A public name of another package, or several that share a verdict, and what becomes of it here.

    ``verdict``: ``same`` (``signature`` is the original's, and ours takes every call it takes), ``differs`` (``words``
    say in what; ``lacks`` are parameters that ours does not take, ``by_name`` those it takes by name only), or
    ``refused`` (ours does not exist; ``words`` say what to do instead).
    """

    home: str
    names: tuple[str, ...]
    verdict: str
    words: str = ""
    signature: str | None = None
    lacks: tuple[str, ...] = ()
    by_name: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Package:
    """A package people come from. ``exports``: every name its public modules offer, read in ``source``.

    ``modules``: where the bundle has what some of these modules offer, if not at its top.
    """

    name: str
    version: str
    source: str
    exports: dict[str, tuple[str, ...]]
    originals: tuple[Original, ...]
    modules: dict[str, str] = field(default_factory=dict)

    def place(self, bundle, original):
        """The bundle, or the module of it, where an original's names are or are not."""
        module = self.modules.get(original.home)
        return getattr(bundle, module) if module else bundle


@dataclass(frozen=True)
class Family:
    """Model families of transformers that behave alike on a CPU when a packed batch reaches them.

    ``without`` and ``with_bundle``: what comes of it, for each of `CARRIES` in order: ``right``, ``refused`` (an error
    before or in the layer) or ``leaks`` (samples mixed without an error). ``layers``: what ``enable`` makes of
    attention, convolution and recurrence: ``here``, ``torch`` (transformers' code), or nothing where the models have
    none. ``names`` are keys of tiny_models.
    """

    title: str
    names: tuple[str, ...]
    without: tuple[str, str, str]
    with_bundle: tuple[str, str, str]
    layers: tuple[str, str, str]


CARRIES = {
    "all keywords": (),
    "flash keywords": ("seq_idx",),
    "`position_ids` only": ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
}
"""What a packed batch carries, and which keywords of the collator it then lacks."""


def named_tests():
    """Every test that some claim names, ``test_x.py::test_y``."""
    import claims_families
    import claims_features
    import claims_migration

    found = {test for row in claims_features.FEATURES for cell in row.cells() for test in cell.tests}
    found |= {test for way in claims_features.WAYS for test in way.tests}
    for package in claims_migration.PACKAGES:
        found |= {test for original in package.originals for test in original.tests}
    return frozenset(found | {*claims_families.TESTS, *claims_migration.TESTS})
