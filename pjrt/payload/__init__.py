"""AMD GPUs for JAX: jax finds this package in the `jax_plugins` namespace and calls `initialize()`.

The package is named after the ROCm major that it was built for (`xla_rocm7`) and works
only with the plugin for the same major (`jax_rocm7_plugin`). Importing the package
needs neither jax nor ROCm.
"""

from __future__ import annotations

import logging

from . import _diagnose, _majors, build_info

__all__ = ["__version__", "initialize", "reasons"]

__version__ = build_info.VERSION
logger = logging.getLogger(__name__)


def reasons(*, need_gpu: bool = True) -> tuple[str, ...]:
    """Return the reasons why ROCm cannot be used, each with its remedy; empty if none is known.

    Args:
        need_gpu: whether a missing GPU is a reason; ahead-of-time compilation needs
            none.
    """
    return _diagnose.reasons(need_gpu=need_gpu)


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
    own = _majors.own_major(__name__)
    if _majors.acting_major(own, need_gpu=needs_gpu) != own or _register.is_taken():
        logger.info(
            "%s does not register the rocm platform; another package handles it.",
            __name__,
        )
        return
    problems = _diagnose.reasons(need_gpu=needs_gpu) or _register.start(own)
    if not problems:
        for advice in _diagnose.advice() if needs_gpu else ():
            logger.warning("%s", advice)
        return
    text = _diagnose.sentence(problems)
    _register.refuse(text)
    if not platforms:
        logger.warning(
            "%s JAX goes on without it; JAX_PLATFORMS=cpu silences this message.", text
        )
