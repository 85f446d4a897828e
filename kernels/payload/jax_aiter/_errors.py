"""Errors, each with one sentence that names the file, the option or the shape."""


class JaxAiterError(RuntimeError):
    """Root of the errors of this package that are not about an argument's shape or dtype."""


class ManifestError(JaxAiterError):
    """_kernels/manifest.json is damaged, or contradicts itself."""


class ModuleLoadError(JaxAiterError):
    """A kernel module is missing, is not the one that was built, or cannot be loaded."""


class BackendError(JaxAiterError):
    """A backend was forced that is unavailable, or the option that forces one is invalid."""


class NotDifferentiableError(JaxAiterError):
    """A quantised operation was differentiated."""
