"""Loads the built bundle once, the way a user does, and hands it to every test.

The tests import torch and the loaded kernel, never the sources or the driver. Which build is tested is decided outside:
``LOCAL_KERNELS=padfree/padfree-flash2=<build folder>``; which CPU path by ``PADFREE_ISA``, one pytest process each.
Where there is no `kernels` package, as on a machine that only has a GPU, ``PADFREE_VARIANT`` is the variant's folder.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

import claims_run
import pytest
import torch
from cases import on_threads

REPO_ID = "padfree/padfree-flash2"
VARIANT = os.environ.get("PADFREE_VARIANT")

# The backend a variant was built for is the device its tests run on. A build of the CUDA kernels for tools/cuda_host is
# a further one, "emulated": it computes on the CPU's tensors.
DEVICES = [os.environ.get("PADFREE_TEST_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")]
EMULATED = DEVICES == ["emulated"]
# What CUDA has kernels for: beginnings of the names of tests. Files of which none is named are not imported either.
CUDA_TESTS = (
    "test_attention_forward.py::", "test_causal_conv1d.py::", "test_devices.py::", "test_errors.py::test_causal_conv1d",
    "test_side_by_side.py::test_ops_are_apart",
)  # fmt: skip


def pytest_configure(config):
    config.addinivalue_line("markers", "kernels_ci: run by the official build as well; every test here is")
    if VARIANT is None and f"{REPO_ID}=" not in os.environ.get("LOCAL_KERNELS", ""):
        pytest.exit(
            f"LOCAL_KERNELS does not say which build of {REPO_ID} to test. Run `make test`, or build it with "
            f"`python -m bundle build --only '*cpu*'` and set LOCAL_KERNELS={REPO_ID}=build",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )
    claims_run.register(config)
    if DEVICES == ["cuda"]:  # tests that name no device make their tensors there
        torch.set_default_device("cuda")
    _set_up_hypothesis()


def _set_up_hypothesis():
    try:
        from hypothesis import HealthCheck, settings
    except ModuleNotFoundError:  # the official build's environment has none: its property tests skip themselves
        return
    settings.register_profile(
        "padfree",
        max_examples=int(os.environ.get("PADFREE_EXAMPLES", "25")),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    settings.load_profile("padfree")


def pytest_ignore_collect(collection_path):
    """Whether a file has nothing for CUDA; None: pytest decides."""
    if DEVICES == ["cpu"] or collection_path.suffix != ".py":
        return None
    return not any(name.startswith(f"{collection_path.name}::") for name in CUDA_TESTS) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks every test ``kernels_ci`` before ``-m kernels_ci`` selects: a file cannot forget it."""
    if DEVICES != ["cpu"]:
        chosen = [item for item in items if item.nodeid.rpartition("/")[2].startswith(CUDA_TESTS)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen
    for item in items:
        item.add_marker(pytest.mark.kernels_ci)


def pytest_report_header():
    build = VARIANT or os.environ["LOCAL_KERNELS"]
    return f"bundle: {build}, PADFREE_ISA={os.environ.get('PADFREE_ISA', '(best)')}, {DEVICES}"


def load_folder(folder):
    """The module of the variant in ``folder``, under the name that `kernels` gives it."""
    name, path = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))["id"], folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(folder)])
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def padfree():
    """The bundle's module, as ``kernels.get_kernel`` returns it."""
    if VARIANT is not None:
        return load_folder(Path(VARIANT))
    import kernels

    backend = "cpu" if DEVICES[0] in ("cpu", "emulated") else None
    return kernels.get_kernel(REPO_ID, version=1, backend=backend)


@pytest.fixture(scope="session")
def ops(padfree):
    """The bundle's raw ops, ``torch.ops.<id>``."""
    return getattr(torch.ops, padfree.__name__)


@pytest.fixture(scope="session", params=DEVICES)
def device(request):
    """The device the variant under test computes on."""
    return torch.device("cpu" if request.param == "emulated" else request.param)


@pytest.fixture
def repeats():
    """How often a call is made that must give the same bits each time. The emulator has no chance in it."""
    return 2 if EMULATED else 20


@pytest.fixture
def host_values():
    """For tests of refusals that look at values of integer tensors: on CUDA these stay on the device."""
    if DEVICES != ["cpu"]:
        pytest.skip("the values of integer tensors stay on the device")


@pytest.fixture
def readable_values():
    """For refusals by public functions, which look at values of integer tensors wherever that costs no transfer."""
    if DEVICES == ["cuda"]:
        pytest.skip("the values of integer tensors stay on the device")


@pytest.fixture
def device_values():
    """For what kernels do with impossible values of integer tensors, which on the CPU never reach one."""
    if DEVICES == ["cpu"]:
        pytest.skip("the CPU refuses impossible values of integer tensors")


@pytest.fixture(params=[1, 2], ids=["1thread", "2threads"])
def threads(request):
    """Runs the test with one and with two threads."""
    with on_threads(request.param):
        yield request.param


@pytest.fixture
def one_thread():
    """For many calls far smaller than what it costs to wake a second thread on a machine that has other work."""
    with on_threads(1):
        yield
