"""Request of a run of the device gate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from core.frozen import frozen


@frozen
class DeviceRequest:
    """Options of the device gate, named like the options of the command line.

    Attributes:
        platform: platform of the tests: rocm, cpu or cuda.
        family: GPU family of the runner; empty if the platform has none.
        jax_tests: location of JAX's tests; empty selects the smoke suite.
        size: size of JAX's suite; empty selects all of the suite.
        tests: files and tests to run; their evidence is not stored.
        import_limit: seconds that the import of a test file may take.
        python: Python version to test with; empty selects a version of the set.
        also: hash-locked requirements to install with the set, such as NVIDIA's plugin.
        rocm: root of the ROCm to load; None uses the ROCm that the loader finds.
        rocm_of_set: whether to load the ROCm that the set was built with, if it can be
            downloaded.
        devices: required number of devices; None uses the numbers of the family's
            runners.
        wheelhouse: folder that `set bundle --platform` made, or a folder of wheels,
            from which all packages come; None uses the network.
    """

    platform: str
    family: str = ""
    jax_tests: str = ""
    size: str = ""
    tests: tuple[str, ...] = ()
    import_limit: int = 600
    python: str = ""
    also: Path | None = None
    rocm: Path | None = None
    rocm_of_set: bool = False
    devices: int | None = None
    wheelhouse: Path | None = None


def option_words(request: DeviceRequest) -> Iterator[str]:
    """Yield the options of the command line that give a request, with absolute paths."""
    for option in fields(DeviceRequest):
        value = getattr(request, option.name)
        if value == option.default:
            continue
        name = "--test" if option.name == "tests" else f"--{option.name}"
        if option.name == "rocm_of_set":
            name, value = "--rocm", "set"
        for item in value if isinstance(value, tuple) else (value,):
            given = item.absolute() if isinstance(item, Path) else item
            yield f"{name.replace('_', '-')}={given}"
