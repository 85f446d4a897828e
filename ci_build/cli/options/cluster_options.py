"""Options of a cluster, and of the processes of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup

from ci_build.cli.options.environment import ENV_PREFIX
from ci_build.cli.options.slurm_options import slurm_request
from ci_build.cluster.cluster_request import ClusterRequest
from ci_build.cluster.launchers import LAUNCHERS, SLURM
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.errors import RequestError
from promotion.storage.bucket_url import bucket_name, is_url

_F = TypeVar("_F", bound=Callable[..., Any])
_TLS = (
    ("cluster_ca", "CA bundle that verifies the scheduler and the workers."),
    ("cluster_cert", "Own certificate for the cluster."),
    ("cluster_key", "Private key of the certificate.  [default: in --cluster-cert]"),
)
_SLURM = ("slurm", "slurm_file")
CLUSTER_VARIABLES = ("cluster", "cluster_store", *(name for name, _ in _TLS), *_SLURM)
"""Variables of the environment, without prefix and in lower case."""


def _tls() -> Iterator[Callable[[_F], _F]]:
    for name, text in _TLS:
        yield cloup.option(
            f"--{name.replace('_', '-')}",
            metavar="FILE",
            envvar=ENV_PREFIX + name.upper(),
            help=text,
        )


def tls_options(function: _F) -> _F:
    """Add the options of TLS to a command."""
    for option in reversed([*_tls()]):
        function = option(function)
    return function


def cluster_options(function: _F) -> _F:
    """Add the options of a cluster to a command."""
    options = (
        cloup.option(
            "--cluster",
            metavar="|".join(("tcp://HOST:PORT", "tls://HOST:PORT", *LAUNCHERS)),
            envvar=ENV_PREFIX + "CLUSTER",
            help=(
                "Scheduler of a Dask cluster that does the work.  [default: this"
                " machine]"
            ),
        ),
        cloup.option(
            "--cluster-store",
            metavar="DIR|URL",
            envvar=ENV_PREFIX + "CLUSTER_STORE",
            help="Folder that all machines share, or bucket, for the files of tasks.",
        ),
        *_tls(),
        cloup.option(
            "--slurm",
            metavar="KEY=VALUE",
            multiple=True,
            envvar=ENV_PREFIX + "SLURM",
            help=(
                "Job of --cluster slurm: `jobs`, and options of sbatch such as"
                " partition, account, time, mem, gres."
            ),
        ),
        cloup.option(
            "--slurm-file",
            metavar="FILE",
            envvar=ENV_PREFIX + "SLURM_FILE",
            help="TOML file with values of --slurm.",
        ),
    )
    return cloup.option_group("Cluster options", *options)(function)


def cluster_request(given: dict[str, Any]) -> ClusterRequest | None:
    """Return the cluster of a command, and remove its options from the given ones.

    None for this machine.

    Raises:
        RequestError: the options contradict each other, or have no effect.
    """
    words = tuple(given.pop("slurm", None) or ())
    values = {
        name: str(given.pop(name, None) or "")
        for name in CLUSTER_VARIABLES
        if name != "slurm"
    }
    address = values.pop("cluster")
    typed = _typed("slurm", *values)
    if not address:
        if typed:
            raise RequestError(
                f"{', '.join(typed)} has no effect without --cluster.",
                hint="Give --cluster too.",
            )
        return None
    if address not in LAUNCHERS:
        check_address(address)
    if address != SLURM and (unused := _typed(*_SLURM)):
        raise RequestError(
            f"{', '.join(unused)} has no effect with {address}.",
            hint="Give --cluster slurm.",
        )
    if not values["cluster_store"]:
        raise RequestError(
            "--cluster needs --cluster-store, through which files reach the workers.",
            hint="Name a folder that all machines share, or a bucket.",
        )
    store = bucket_name(values["cluster_store"])
    store = store if is_url(store) else str(Path(store).absolute())
    slurm = (
        slurm_request(values["slurm_file"], words, store) if address == SLURM else None
    )
    return ClusterRequest(
        address=address, store=store, slurm=slurm, **tls_files(address, values)
    )


def with_cluster(
    request: WheelSetRequest, cluster: ClusterRequest | None, *, other_use: bool = False
) -> WheelSetRequest:
    """Return a request whose kernels the workers of a cluster compile.

    Args:
        other_use: whether the command also uses the cluster for something else.

    Raises:
        RequestError: the set has no kernels, so that --cluster has no effect.
    """
    if cluster is None or request.build.kernels is not None:
        return replace(request, cluster=cluster)
    if not other_use and _typed("cluster"):
        raise RequestError(
            "--cluster has no effect without kernels.",
            hint="Give --kernels, or omit --cluster.",
        )
    return request


def tls_files(address: str, values: dict[str, str]) -> dict[str, str]:
    """Return the fields `ca`, `cert` and `key` of a request.

    Raises:
        RequestError: files are missing, or TLS is not used.
    """
    files = {
        field.name: values.get(f"cluster_{field.name}", "")
        for field in fields(ClusterRequest)
        if field.name in ("ca", "cert", "key")
    }
    names = [f"--cluster-{name}" for name, value in files.items() if value]
    if address.startswith("tcp:") and names:
        raise RequestError(
            f"{', '.join(names)} has no effect with {address}.",
            hint="Use a tls:// address.",
        )
    if (names or address.startswith("tls:")) and not (files["ca"] and files["cert"]):
        raise RequestError(
            f"{address} needs --cluster-ca and --cluster-cert.", hint="Give both files."
        )
    for name, value in files.items():
        if value and not Path(value).is_file():
            raise RequestError(
                f"--cluster-{name} does not exist: {value!r}.", hint="Name a PEM file."
            )
    return {
        name: str(Path(value).absolute()) if value else ""
        for name, value in files.items()
    }


def check_address(address: str, *, any_port: bool = False) -> str:
    """Return the address of a scheduler.

    Args:
        any_port: whether the port may be 0, which selects a free one.

    Raises:
        RequestError: it is no tcp:// or tls:// address with a port.
    """
    scheme, mark, place = address.partition("://")
    host, _, port = place.rpartition(":")
    good = (
        scheme in ("tcp", "tls")
        and mark
        and host
        and port.isascii()
        and port.isdecimal()
    )
    if not good or not (0 if any_port else 1) <= int(port) < 65536:
        raise RequestError(
            f"{address!r} is no address of a scheduler.",
            hint="Write it like tls://HOST:8786 or tcp://HOST:8786.",
        )
    return address


def parse_resources(texts: tuple[str, ...]) -> dict[str, float]:
    """Return the resources of a worker from `NAME=N` texts, each with one or more pairs.

    Raises:
        RequestError: a text is no resource.
    """
    resources: dict[str, float] = {}
    for word in (word for text in texts for word in text.replace(",", " ").split()):
        name, _, amount = word.partition("=")
        if (
            not name
            or ":" in name
            or not amount.isascii()
            or not amount.isdecimal()
            or int(amount) < 1
        ):
            raise RequestError(
                f"--resources is invalid: {word!r}.", hint="Write it like gfx942=8."
            )
        resources[name] = resources.get(name, 0) + int(amount)
    return resources


def _typed(*names: str) -> list[str]:
    """Return the options among these that stand on the command line."""
    source = click.get_current_context().get_parameter_source
    typed = click.core.ParameterSource.COMMANDLINE
    return [f"--{name.replace('_', '-')}" for name in names if source(name) is typed]
