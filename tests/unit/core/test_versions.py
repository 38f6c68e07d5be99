"""The version guard: one clear sentence for a package that is missing or too old."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from torch_galley.core import versions
from torch_galley.core.errors import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def have(monkeypatch):
    """A function that pretends that these versions are installed, None meaning none."""
    found = {"torch": "2.11.0", "jax": "0.10.2", "jaxlib": "0.10.2"}

    def version(package):
        if found[package] is None:
            raise metadata.PackageNotFoundError(package)
        return found[package]

    monkeypatch.setattr(versions.metadata, "version", version)
    return found.update


def test_oldest_versions_pass(have):
    versions.check_versions()


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.11", "3.0.0", "2.11.0a0+git1234", "10.0"])
def test_newer_torch_passes(have, version):
    have({"torch": version})
    versions.check_versions()


@pytest.mark.parametrize(
    ("package", "version", "message"),
    [
        ("torch", "2.10.1+cu128", "torch-galley needs torch 2.11 or newer; found 2.10.1+cu128"),
        ("torch", None, "torch-galley needs torch 2.11 or newer; it is not installed"),
        ("jax", "0.10.1", "torch-galley needs jax 0.10.2 or newer; found 0.10.1"),
        ("jax", "0.9.5", "torch-galley needs jax 0.10.2 or newer; found 0.9.5"),
        ("jax", None, "torch-galley needs jax 0.10.2 or newer; it is not installed"),
        ("jaxlib", "junk", "torch-galley needs jaxlib 0.10.2 or newer; found junk"),
    ],
)
def test_wrong_version(have, package, version, message):
    have({package: version})
    with pytest.raises(ConfigError) as caught:
        versions.check_versions()
    assert caught.value.message == message
    assert caught.value.hint.startswith(f'pip install "{package}>=')


def test_pyproject_says_the_same():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for package in ("torch", "jax"):
        assert f"{package}>={'.'.join(map(str, versions.NEEDED[package]))}" in wanted
