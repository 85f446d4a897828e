"""Options of the command line, their environment variables and defaults, parsed into frozen requests.

Only this package reads the environment. Options stand before or after the subcommand, and each value remembers
where it came from. The commands import everything from here.
"""

from ci_build.cli.options.device import device_options, device_run_options, parse_device_options
from ci_build.cli.options.environment import (
    OutputMode,
    actor,
    connection,
    environment,
    proxy_of,
    signing_key,
)
from ci_build.cli.options.release import (
    CHANNELS,
    bucket_option,
    channel_option,
    dry_run_option,
    junit_option,
    signing_key_option,
    trust_config_option,
)
from ci_build.cli.options.reproduction import recorded_settings
from ci_build.cli.options.request import (
    build_request,
    chosen_pythons,
    kernels_request,
    out_dir,
    require_known_pythons,
    this_python_and_one_more,
    wheel_set_request,
)
from ci_build.cli.options.rocm import (
    build_job_defaults,
    find_rocm,
    rocm_build_url,
    rocm_defaults,
    rocm_problems,
    rocm_storage,
)
from ci_build.cli.options.settings import Setting, Settings, cache_dir, cache_note, refuse_misplaced, split_list
from ci_build.cli.options.source import container_size, image_settings, source_defaults
from ci_build.cli.options.table import (
    CONTAINER_OPTIONS,
    NEEDS_KERNELS,
    REFUSED_WITH_PUBLISHED,
    SOURCE_OPTIONS,
    build_options,
    chosen_options,
    option_names,
)
from ci_build.release.request import CORPORA, GATES, SERVE_PORT, STRUCTURE, DeviceOptions, SigningKey
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
    "OutputMode",
    "Setting",
    "Settings",
    "SigningKey",
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
    "image_settings",
    "junit_option",
    "kernels_request",
    "option_names",
    "out_dir",
    "parse_device_options",
    "proxy_of",
    "recorded_settings",
    "refuse_misplaced",
    "require_known_pythons",
    "rocm_build_url",
    "rocm_defaults",
    "rocm_problems",
    "rocm_storage",
    "signing_key",
    "signing_key_option",
    "source_defaults",
    "split_list",
    "this_python_and_one_more",
    "trust_config_option",
    "wheel_set_request",
]
