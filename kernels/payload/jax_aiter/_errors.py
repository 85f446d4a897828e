"""Errors of this package; each message names the file, option or operation at fault."""


class JaxAiterError(RuntimeError):
    """Base class of this package's errors, except those about an argument's shape or dtype."""


class ManifestError(JaxAiterError):
    """A damaged _kernels/manifest.json, or one of another schema."""


class ModuleLoadError(JaxAiterError):
    """A kernel module that is missing, differs from the built one, or cannot be loaded."""


class BackendError(JaxAiterError):
    """A forced backend that is unavailable, or an invalid option."""


class NotDifferentiableError(JaxAiterError):
    """An attempt to differentiate an operation that has no derivative."""
