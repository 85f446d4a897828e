"""AMD GPUs for JAX: jax finds this package in the `jax_plugins` namespace and calls `initialize()`.

The package is named after the ROCm major that it was built for (`xla_rocm7`) and works
only with the plugin for the same major (`jax_rocm7_plugin`). Importing the package
needs neither jax nor ROCm. `python -m jax_plugins.xla_rocm7` prints all problems of this
machine.
"""

from __future__ import annotations

import logging

from . import _diagnosis, _facts, build_info
from ._problems import WARNING, Problem

__all__ = ["__version__", "initialize", "reasons"]

__version__ = build_info.VERSION
logger = logging.getLogger(__name__)


def reasons(*, need_gpu: bool = True) -> tuple[str, ...]:
    """Return the reasons why ROCm cannot be used, each with its remedy; empty if none is known.

    Args:
        need_gpu: whether a missing GPU is a reason; ahead-of-time compilation needs
            none.
    """
    own = _facts.major_of(__name__)
    facts = _facts.here(own)[own]
    return tuple(map(str, _diagnosis.errors(facts, need_gpu=need_gpu)))


def initialize() -> None:
    """Register the ROCm backend with jax, or report once why it cannot be used.

    If ROCm cannot be used, one warning is logged and jax continues with its other
    platforms. If the user asked for rocm or gpu (JAX_PLATFORMS), a request for devices
    raises an error with the same text. If the user asked only for other platforms, such
    as cpu, nothing is logged. This function does not raise, because jax would log the
    traceback and hide the reason.
    """
    from . import _register

    platforms = _register.asked_platforms()
    needs_gpu = not platforms or bool(platforms & {"rocm", "gpu"})
    own = _facts.major_of(__name__)
    candidates = _facts.here(own)
    chosen = _diagnosis.choose(candidates, need_gpu=needs_gpu)
    if chosen != own or _register.is_taken():
        logger.info(
            "%s does not register the rocm platform; another package handles it.",
            __name__,
        )
        return
    facts = candidates[own]
    error = next(_diagnosis.errors(facts, need_gpu=needs_gpu), None)
    blocked = _diagnosis.blocked(candidates, own, error, need_gpu=needs_gpu)
    error = blocked or error or _register.start(facts)
    if error is None:
        if needs_gpu:
            _warn(facts)
        return
    text = _sentence(error)
    _register.refuse(text)
    if not platforms:
        logger.warning(
            "%s JAX goes on without it; JAX_PLATFORMS=cpu silences this message.", text
        )


def _sentence(error: Problem) -> str:
    """Return the text of the warning and of the error, which gates recognise."""
    project = f"jax-rocm{_facts.major_of(__name__)}-pjrt"
    return f"{project} {__version__} cannot use ROCm: {error}"


def _warn(facts: _facts.Facts) -> None:
    from . import _register

    found = [*_diagnosis.problems(facts), *_register.broken_modules(facts)]
    for item in found:
        if item.severity == WARNING:
            logger.warning("%s", item)
