"""Native code from wheels that a package index publishes; pip finds and fetches them, so its configuration counts."""

from __future__ import annotations

from packaging.version import Version

from core.errors import ProcessError
from core.model import BuildRequest, Payload
from core.pip import PIP_ENV_OVERRIDES, Resolved, parse_report, pip_argv
from core.process import Runner
from core.versions import package_name


def jax_release(version: str) -> str:
    """The release of jax that a version of the plugin is for: without `.postN`, which counts the plugin's own."""
    return Version(version).public.partition(".post")[0]


def requirements(request: BuildRequest) -> tuple[str, ...]:
    """Exact requirements of the published set: jax, jaxlib, plugin and pjrt; the last two only if they are taken."""
    major = request.rocm_version.major
    base = jax_release(request.jax_version)
    around = (f"jax=={base}", f"jaxlib=={base}")
    if request.payload is Payload.SOURCE:
        return around
    return (
        *around,
        f"{package_name('plugin', major)}=={request.jax_version}",
        f"{package_name('pjrt', major)}=={request.jax_version}",
    )


def resolve_argv(request: BuildRequest, python: str) -> tuple[str, ...]:
    """The pip command that resolves the set for one Python and prints an installation report (JSON)."""
    return pip_argv(
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--only-binary=:all:",
        f"--python-version={python}",
        "--target=unused",
        "--report=-",
        *requirements(request),
    )


def resolve(request: BuildRequest, python: str, runner: Runner) -> tuple[Resolved, ...]:
    """What pip would install for one Python: the set itself and everything that it depends on."""
    try:
        # The report is long and no use to a person, so its lines are shown to nobody.
        done = runner.run(resolve_argv(request, python), env=PIP_ENV_OVERRIDES, on_line=lambda _: None)
    except ProcessError as error:
        hint = "Check that the package indexes of pip's configuration answer (`pip config list`) and offer these."
        raise ProcessError(error.message, hint=f"\n{hint}") from error
    return parse_report(done.stdout)
