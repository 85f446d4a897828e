"""Every error that a person may see: one clear sentence, a hint what to do next, an exit code of its own."""

from typing import ClassVar


class CiBuildError(Exception):
    """Root of all errors of this project.

    Args:
        message: what was found, one sentence.
        hint: what to do next, one sentence; empty when the message says it already.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class RequestError(CiBuildError):
    """The options contradict each other or ask for something that does not exist."""

    exit_code = 2


class UnknownTargetError(RequestError):
    """A gfx target or family that the table does not hold."""

    exit_code = 3


class VersionRuleError(RequestError):
    """A version that no wheel may carry, or that two different contents would share."""

    exit_code = 4


class NoContainerEngineError(CiBuildError):
    """A build from source was asked for and neither docker nor podman is there."""

    exit_code = 5


class InputError(CiBuildError):
    """An input could not be had, or is not what its digest says."""

    exit_code = 6


class ArchiveError(CiBuildError):
    """A wheel or a tarball that is damaged, ambiguous or unsafe to unpack."""

    exit_code = 7


class ElfError(CiBuildError):
    """An ELF file that cannot be read, or cannot be edited in place."""

    exit_code = 8


class FatbinError(CiBuildError):
    """A HIP fat binary that is damaged, or lacks a requested target."""

    exit_code = 9


class RepairError(CiBuildError):
    """A wheel that cannot honestly be given the platform tag asked for."""

    exit_code = 10


class InspectionError(CiBuildError):
    """An inspection found errors in a wheel."""

    exit_code = 11


class ProcessError(CiBuildError):
    """A process that was started failed."""

    exit_code = 12


class WheelSetError(CiBuildError):
    """A `wheels.json` that cannot be read, or files that are not the ones it names."""

    exit_code = 13


class BucketError(CiBuildError):
    """A bucket refused, or holds other bytes than expected."""

    exit_code = 14


class GateError(CiBuildError):
    """A gate could not run, or ran and failed."""

    exit_code = 15


class PromotionBlockedError(CiBuildError):
    """The policy does not let this set through."""

    exit_code = 16


class BusyError(CiBuildError):
    """Another run holds the lock."""

    exit_code = 17


class MachineError(CiBuildError):
    """The machine lacks something that the work needs."""

    exit_code = 18


class KernelError(CiBuildError):
    """A kernel module that is not what `modules.toml` says, or that could not be built."""

    exit_code = 19


class ReproducibilityError(CiBuildError):
    """A rebuild gave other wheels than the ones that it should reproduce."""

    exit_code = 20


class DriftError(CiBuildError):
    """Somebody's workflow has commands that this program does not take."""

    exit_code = 21


class SickMachineError(CiBuildError):
    """The doctor found something on this machine that keeps jax from using its GPU."""

    exit_code = 30
