"""Are the installed torch and jax recent enough? Asked once, when torch_galley is imported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

from torch_galley.core.errors import ConfigError

NEEDED = {"torch": (2, 11), "jax": (0, 10, 2), "jaxlib": (0, 10, 2)}
"""The oldest version of each package that works. pyproject.toml says the same."""


@dataclass(frozen=True)
class Installed:
    """A package, its version, and whether that is new enough."""

    package: str
    version: str | None
    """None if it is not installed."""
    needed: str
    """The oldest version that works."""
    fits: bool


def parse(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; what follows them is not compared.

    Example:
        >>> parse("2.13.0+cpu"), parse("0.10.2.dev20260901")
        ((2, 13, 0), (0, 10, 2))
    """
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def installed() -> list[Installed]:
    """Look up the packages we need, without importing them."""
    found = []
    for package, oldest in NEEDED.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = None
        fits = version is not None and parse(version) >= oldest
        found.append(Installed(package, version, ".".join(map(str, oldest)), fits))
    return found


def check_versions() -> None:
    """Raise ConfigError unless torch and jax are there and new enough.

    Raises:
        ConfigError: naming the package, what is installed and what is needed.
    """
    for one in installed():
        if not one.fits:
            have = f"found {one.version}" if one.version else "it is not installed"
            raise ConfigError(
                f"torch-galley needs {one.package} {one.needed} or newer; {have}",
                hint=f'pip install "{one.package}>={one.needed}"',
                package=one.package,
                version=one.version,
            )
