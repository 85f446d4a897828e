"""Choice of a backend (AITER, the portable kernels or XLA) for each operation, with its reason.

Options are read from the environment whenever an operation is traced; a function that
jax.jit has traced keeps its choice:

    JAX_AITER_BACKEND=auto|aiter|portable|xla  backend of every operation
    JAX_AITER_BACKEND_RMS_NORM=…               backend of one operation
    JAX_AITER_TARGET=gfx942[,gfx950]           GPUs to lower for, instead of this machine's
    JAX_AITER_COMPUTE_UNITS=304                their compute units, for AITER's tuned tables
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax

from jax_aiter import _tuned
from jax_aiter._errors import BackendError
from jax_aiter._loader import Loader, loader
from jax_aiter._table import (
    AITER,
    AUTO,
    BACKENDS,
    OPERATIONS,
    PORTABLE,
    PROCESSORS,
    XLA,
    FfiTarget,
)
from jax_aiter._tuned import Advice, Places, Product

OPTION = "JAX_AITER_BACKEND"
TARGET_OPTION = "JAX_AITER_TARGET"
UNITS_OPTION = "JAX_AITER_COMPUTE_UNITS"

_GFX = re.compile(r"gfx[0-9a-f]+(:(sramecc|xnack)[+-])*")
_KERNELS = {AITER: "AITER kernel", PORTABLE: "portable kernel"}


@dataclass(frozen=True, slots=True)
class Choice:
    """Implementation of an operation; equal choices lower to the same code.

    Attributes:
        operation: name in OPERATIONS.
        backend: one of BACKENDS.
        call: name of the custom call; empty for XLA.
        kernel, splitk: AITER's kernel and its parts of K for a product; "" and 0 for
            the handler's choice.
        sizes: m, n and k that they are for; empty for any.
        forced: whether an option forces the backend, so that no other backend replaces
            it on another platform.
        blind: whether kernels were not considered, since no target is known.
        why: reason for the choice.
    """

    operation: str
    backend: str
    call: str = ""
    kernel: str = ""
    splitk: int = 0
    sizes: tuple[int, ...] = ()
    forced: bool = False
    blind: bool = False
    why: str = field(default="", compare=False)

    def tuned(
        self,
        m: int,
        n: int,
        k: int,
    ) -> tuple[str, int]:
        """Return kernel and splitk for a product.

        "" and 0 for another one, such as the part of one device.
        """
        return (self.kernel, self.splitk) if self.sizes in ((), (m, n, k)) else ("", 0)


def forced_backend(
    operation: str, environment: Mapping[str, str] = os.environ
) -> tuple[str, str]:
    """Return the forced backend and the option that forces it, such as NAME=xla.

    (AUTO, "") if none is forced.

    Raises:
        BackendError: an option has an unknown value or names an unknown operation.
    """
    options = {f"{OPTION}_{name.upper()}" for name in OPERATIONS}
    for name in sorted(environment):
        if name.startswith(f"{OPTION}_") and name not in options:
            raise BackendError(
                f"{name} is set, but does not name an operation. Valid names:"
                f" {', '.join(sorted(options))}."
            )
    for name in (f"{OPTION}_{operation.upper()}", OPTION):
        value = environment.get(name, "")
        if value and value not in (AUTO, *BACKENDS):
            raise BackendError(
                f"{name}={value} is invalid. Use one of {', '.join((AUTO, *BACKENDS))}."
            )
        if value:
            return value, ("" if value == AUTO else f"{name}={value}")
    return AUTO, ""


def rocm_devices() -> tuple[Any, ...]:
    """Return the AMD GPUs of this process; empty if jax has no ROCm backend."""
    try:
        return tuple(jax.local_devices(backend="rocm"))
    except RuntimeError:
        return ()


def gfx_of(device: Any) -> str | None:
    """Return the gfx target of a device, such as "gfx942".

    None if the device does not report one.
    """
    text = str(getattr(device, "compute_capability", ""))
    return text if _GFX.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class Wanted:
    """GPUs that code is lowered for.

    Attributes:
        gfx: gfx targets.
        source: origin of the targets.
        units: target and compute units of the devices that report them.
    """

    gfx: tuple[str, ...]
    source: str
    units: tuple[tuple[str, int], ...]

    @property
    def processors(self) -> set[str]:
        """Processors of the targets."""
        return {gfx.partition(":")[0] for gfx in self.gfx}

    @property
    def places(self) -> Places:
        """Processor and compute units of each kind of GPU; empty if one is unknown."""
        places = ((gfx.partition(":")[0], number) for gfx, number in self.units)
        known = tuple(dict.fromkeys(places))
        return known if {gfx for gfx, _ in known} == self.processors else ()


def wanted_gpus(
    environment: Mapping[str, str] = os.environ, devices: Sequence[Any] | None = None
) -> Wanted:
    """Return the GPUs that code is lowered for.

    Args:
        environment: variables, of which JAX_AITER_TARGET and JAX_AITER_COMPUTE_UNITS are
            read.
        devices: AMD GPUs; None means those of this process.

    Raises:
        BackendError: JAX_AITER_TARGET contains something other than gfx targets, or
            JAX_AITER_COMPUTE_UNITS is not a number or has no targets.
    """
    named = environment.get(TARGET_OPTION, "")
    number = environment.get(UNITS_OPTION, "")
    if number and not (named and number.isdecimal() and int(number)):
        raise BackendError(
            f"{UNITS_OPTION}={number} has to be a positive number, and {TARGET_OPTION}"
            " has to be set."
        )
    if named:
        parts = tuple(dict.fromkeys(part.strip() for part in named.split(",")))
        for part in parts:
            if not _GFX.fullmatch(part) or part.partition(":")[0] not in PROCESSORS:
                raise BackendError(
                    f"{TARGET_OPTION}={named} names {part!r}, which is not a known gfx"
                    " target such as gfx942."
                )
        units = tuple((part, int(number)) for part in parts if number)
        return Wanted(parts, f"{TARGET_OPTION}={named}", units)
    targets: dict[str, None] = {}
    kinds: dict[tuple[str, int], None] = {}
    for device in rocm_devices() if devices is None else devices:
        gfx = gfx_of(device)
        if gfx is None:
            return Wanted((), f"device {device} does not report its gfx target", ())
        targets[gfx] = None
        units_of = getattr(device, "core_count", None)
        if isinstance(units_of, int):
            kinds[gfx, units_of] = None
    return Wanted(tuple(targets), "the AMD GPUs of this process", tuple(kinds))


def decide(
    operation: str,
    targets: Sequence[FfiTarget] | None = None,
    *,
    obstacles: Mapping[str, str] = MappingProxyType({}),
    product: Product | None = None,
    kernels: Loader,
    environment: Mapping[str, str] = os.environ,
    devices: Sequence[Any] | None = None,
) -> tuple[Choice, str]:
    """Return the choice for an operation and its kernel module, without loading the module.

    Args:
        operation: name in OPERATIONS.
        targets: custom calls that can implement the operation, the best of each backend
            first; None means those of OPERATIONS.
        obstacles: backend or custom call -> reason why it does not support these
            arguments, such as their shape.
        product: the product, which AITER's tuned tables may have a row for; None if it
            is unknown.
        kernels: available modules.
        environment: variables that contain the options.
        devices: AMD GPUs; None means those of this process.

    Raises:
        BackendError: an option forces an unavailable backend; the message has the
            reason.
    """
    forced, option = forced_backend(operation, environment)
    if forced == XLA:
        return Choice(operation, XLA, forced=True, why=option), ""
    calls = OPERATIONS[operation] if targets is None else tuple(targets)
    wanted = wanted_gpus(environment, devices)
    missing: list[str] = []
    for backend in (AITER, PORTABLE) if forced == AUTO else (forced,):
        mine = [call for call in calls if call.backend == backend]
        if not mine:
            missing.append(f"there is no {_KERNELS[backend]} for {operation}")
        for call in mine:
            obstacle = (
                _problem(call, kernels, wanted)
                or obstacles.get(call.name, "")
                or obstacles.get(backend, "")
            )
            if obstacle:
                missing.append(obstacle)
                continue
            module = _module(kernels, call)
            why = option or f"{module.name} has code for {', '.join(wanted.gfx)}"
            advice = None
            if backend == AITER:
                hsa = kernels.root / "hsa"
                advice = _tuned.advise(operation, module, hsa, wanted.places, product)
            if advice is None:
                advice = Advice(backend, "")
            elif advice.backend != backend and not option:
                missing.append(advice.why)
                continue
            else:
                why = f"{why}; {advice.why}"
            choice = Choice(
                operation,
                backend,
                call.name,
                advice.kernel,
                advice.splitk,
                product.sizes if product and advice.kernel else (),
                forced=bool(option),
                why=why,
            )
            return choice, module.name
    why = "; ".join(dict.fromkeys(missing))
    if option:
        hint = (
            f"Unset {option.partition('=')[0]}, or set {OPTION}_{operation.upper()} for"
            " this operation alone."
        )
        raise BackendError(f"{option} cannot be used: {why}. {hint}")
    blind = kernels.manifest is not None and not wanted.gfx
    return Choice(operation, XLA, blind=blind, why=why), ""


def choose(
    operation: str,
    targets: Sequence[FfiTarget] | None = None,
    *,
    obstacles: Mapping[str, str] = MappingProxyType({}),
    product: Product | None = None,
) -> Choice:
    """Return the choice for an operation in this process and load its module.

    Raises:
        BackendError: an option forces an unavailable backend.
        ManifestError: the manifest is damaged.
        ModuleLoadError: a module of the wheel cannot be loaded; no other backend
            replaces it silently.
    """
    kernels = loader()
    choice, module = decide(
        operation, targets, obstacles=obstacles, product=product, kernels=kernels
    )
    if module:
        kernels.ensure(module)
    for observe in _observers:
        observe(choice, module, product)
    return choice


def has_objects(call: FfiTarget, pattern: str) -> bool:
    """Return whether a custom call has code objects of this name for each GPU."""
    module = _module(loader(), call)
    objects = tuple(module.objects) if module else ()
    return all(
        fnmatch.filter(objects, f"{gfx}/*/{pattern}")
        for gfx in wanted_gpus().processors
    )


Observer = Callable[[Choice, str, Product | None], None]
"""Function of a choice, its module and its product."""
_observers: list[Observer] = []


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Call a function for each choice that is made meanwhile."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def _module(kernels: Loader, call: FfiTarget) -> Any:
    return kernels.manifest.module_of(call.name) if kernels.manifest else None


def _problem(call: FfiTarget, kernels: Loader, wanted: Wanted) -> str:
    # Return the reason why a custom call cannot be used, the most general reason first;
    # empty if it can.
    if kernels.manifest is None:
        return (
            f"this package has no kernel modules ({kernels.root / 'manifest.json'} does"
            " not exist)"
        )
    if not wanted.gfx:
        return (
            f"there is no AMD GPU to lower for ({wanted.source}; set {TARGET_OPTION} to"
            " name a target)"
        )
    module = _module(kernels, call)
    if module is None:
        return f"no module of this package provides {call.name}"
    for target in wanted.gfx:
        if not module.runs_on(target):
            return (
                f"module {module.name} has no code for {target}, only for"
                f" {', '.join(module.targets)}"
            )
    for target, units in wanted.units:
        if not module.fits(target, units):
            supported = sorted(module.variants[target.partition(":")[0]])
            numbers = ", ".join(map(str, supported))
            return (
                f"module {module.name} has no code for {target} with {units} compute"
                f" units, only with {numbers}"
            )
    return ""
