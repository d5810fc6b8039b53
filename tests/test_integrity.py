"""verify(): the loaded files against the digest of the build, by the algorithm of kernels-data."""

import importlib
import re
import shutil
from pathlib import Path

import pytest

kernels_data = pytest.importorskip("kernels_data")


@pytest.fixture
def integrity(padfree):
    return importlib.import_module(f"{padfree.__name__}.integrity")


@pytest.fixture
def variant(padfree, integrity, tmp_path, monkeypatch):
    """A copy of the loaded variant's folder, which verify() takes for the loaded one."""
    copy = tmp_path / "variant"
    shutil.copytree(Path(padfree.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(integrity, "__file__", str(copy / "integrity.py"))
    return copy


def _ours(integrity, folder, algorithm):
    return integrity.digest(folder, str(algorithm))


@pytest.mark.parametrize(
    "algorithm", [kernels_data.DigestAlgorithm.SHA256, kernels_data.DigestAlgorithm.SHA512], ids=str
)
def test_digest_is_that_of_kernels_data(integrity, tmp_path, algorithm):
    for name in ("a.py", "b.pyc", ".hidden", "metadata.json", "metadata.json.sigstore", "__pycache__/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    for name in ("deep/er/d.so", "deep/metadata.json", "deep/__pycache__/e.py", "with ü .txt", "empty"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"" if name == "empty" else bytes(range(256)) * 9000)
    (tmp_path / "link.py").symlink_to("a.py")
    (tmp_path / "linked folder").symlink_to("deep")
    wanted = kernels_data.Digest.hash_variant(algorithm, tmp_path).files
    assert len(wanted) == 7
    assert _ours(integrity, tmp_path, algorithm) == wanted


def test_the_loaded_variant_is_as_built(padfree):
    assert re.fullmatch(r"\S+: \d+ files as built \(sha256\)", padfree.verify())


def test_names_what_is_missing_altered_and_unknown(padfree, variant):
    library = variant / "wiring.py"
    library.write_bytes(library.read_bytes()[:-1] + b"#")
    (variant / "layers.py").unlink()
    (variant / "extra.py").touch()
    with pytest.raises(RuntimeError) as error:
        padfree.verify()
    for part in (f"altered: {library.name}", "missing: layers.py", "unknown: extra.py"):
        assert part in str(error.value)


def test_a_truncated_library_is_altered(padfree, variant):
    libraries = list(variant.glob("*.so"))
    if not libraries:
        pytest.skip("a variant without compiled code")
    with libraries[0].open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(RuntimeError, match=f"altered: {re.escape(libraries[0].name)}"):
        padfree.verify()


def test_without_a_digest(padfree, variant):
    text = (variant / "metadata.json").read_text()
    (variant / "metadata.json").write_text(text.replace('"digest"', '"other"'))
    with pytest.raises(RuntimeError, match=re.escape("metadata.json must carry a digest, got none")):
        padfree.verify()
