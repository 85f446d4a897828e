"""Words become a BuildRequest here: options, their environment variables, their defaults, and what contradicts what.

The only room that reads the environment. Each option stands before or after the subcommand, and each value
remembers where it came from. Other rooms take what they need from here, whichever module has it.
"""

from ci_build.cli.options.device import DeviceOptions, device_options, device_run_options, parse_device_options
from ci_build.cli.options.environment import (
    SigningKey,
    Surroundings,
    actor,
    connection,
    environment,
    proxy_of,
    signing_key,
)
from ci_build.cli.options.release import (
    CHANNELS,
    CORPORA,
    GATES,
    SERVE_PORT,
    STRUCTURE,
    bucket_option,
    channel_option,
    dry_run_option,
    junit_option,
    signing_key_option,
    trust_config_option,
)
from ci_build.cli.options.request import (
    build_request,
    chosen_pythons,
    require_known_pythons,
    this_python_and_one_more,
)
from ci_build.cli.options.rocm import (
    build_job_defaults,
    find_rocm,
    rocm_build_url,
    rocm_defaults,
    rocm_problems,
    rocm_storage,
)
from ci_build.cli.options.settings import Setting, Settings, cache_dir, cache_note, refuse_misplaced, words
from ci_build.cli.options.source import container_size, source_defaults
from ci_build.cli.options.table import (
    CONTAINER_OPTIONS,
    NEEDS_KERNELS,
    REFUSED_WITH_PUBLISHED,
    SOURCE_OPTIONS,
    build_options,
    chosen_options,
    option_names,
)
from core.defaults import defaults

__all__ = [
    "CHANNELS",
    "CONTAINER_OPTIONS",
    "CORPORA",
    "GATES",
    "NEEDS_KERNELS",
    "REFUSED_WITH_PUBLISHED",
    "SERVE_PORT",
    "SOURCE_OPTIONS",
    "STRUCTURE",
    "DeviceOptions",
    "Setting",
    "Settings",
    "SigningKey",
    "Surroundings",
    "actor",
    "bucket_option",
    "build_job_defaults",
    "build_options",
    "build_request",
    "cache_dir",
    "cache_note",
    "channel_option",
    "chosen_options",
    "chosen_pythons",
    "connection",
    "container_size",
    "defaults",
    "device_options",
    "device_run_options",
    "dry_run_option",
    "environment",
    "find_rocm",
    "junit_option",
    "option_names",
    "parse_device_options",
    "proxy_of",
    "refuse_misplaced",
    "require_known_pythons",
    "rocm_build_url",
    "rocm_defaults",
    "rocm_problems",
    "rocm_storage",
    "signing_key",
    "signing_key_option",
    "source_defaults",
    "this_python_and_one_more",
    "trust_config_option",
    "words",
]
