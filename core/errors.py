"""Errors for users: one sentence, a hint, and one exit code for each kind."""

from typing import ClassVar


class CiBuildError(Exception):
    """Root of all errors of this project.

    Args:
        message: the problem, one sentence.
        hint: remedy, one sentence; empty if the message already contains the remedy.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        space = "\n" if "\n" in self.message else " "
        return f"{self.message.rstrip()}{space}{self.hint}".rstrip()


class RequestError(CiBuildError):
    """Options contradict each other or name something that does not exist."""

    exit_code = 2


class UnknownTargetError(RequestError):
    """A gfx target or family is not in the target table."""

    exit_code = 3


class VersionRuleError(RequestError):
    """A version is invalid, or two different contents would share it."""

    exit_code = 4


class NoContainerEngineError(CiBuildError):
    """A build from source needs a container engine, and neither docker nor podman is available."""

    exit_code = 5


class InputError(CiBuildError):
    """An input is not available, or does not match its digest."""

    exit_code = 6


class ArchiveError(CiBuildError):
    """A wheel or a tarball is damaged, ambiguous or unsafe to unpack."""

    exit_code = 7


class ElfError(CiBuildError):
    """An ELF file cannot be read, or cannot be edited in place."""

    exit_code = 8


class FatbinError(CiBuildError):
    """A HIP fat binary is damaged, or lacks a requested target."""

    exit_code = 9


class RepairError(CiBuildError):
    """A wheel does not meet the requested platform tag."""

    exit_code = 10


class InspectionError(CiBuildError):
    """An inspection found errors in a wheel."""

    exit_code = 11


class ProcessError(CiBuildError):
    """A child process failed."""

    exit_code = 12


class WheelSetError(CiBuildError):
    """A `wheels.json` cannot be read, or files differ from it."""

    exit_code = 13


class BucketError(CiBuildError):
    """A bucket refused a request, or contains unexpected bytes."""

    exit_code = 14


class GateError(CiBuildError):
    """A gate could not run, or ran and failed."""

    exit_code = 15


class PromotionBlockedError(CiBuildError):
    """The policy blocks the promotion of a set."""

    exit_code = 16


class BusyError(CiBuildError):
    """Another run holds the lock."""

    exit_code = 17


class MachineError(CiBuildError):
    """The machine lacks something that the work needs."""

    exit_code = 18


class KernelError(CiBuildError):
    """A kernel module differs from `modules.toml`, or could not be built."""

    exit_code = 19


class ReproducibilityError(CiBuildError):
    """A rebuild produced wheels that differ from the recorded ones."""

    exit_code = 20


class OtherRocmError(CiBuildError):
    """A wheel was compiled with another ROCm than the one given to its build."""

    exit_code = 22


class FormatError(CiBuildError):
    """A JSON or TOML file has a wrong value, an unknown key or another schema."""

    exit_code = 23


class SickMachineError(CiBuildError):
    """The doctor found a problem that keeps jax from using the GPU."""

    exit_code = 30
