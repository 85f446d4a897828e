"""Repositories that know this build's ROCm, gfx targets, Python and wheel version; all told by the environment."""

def _needed(repository, name):
    value = repository.os.environ.get(name, "")
    if not value:
        fail("%s is not set: give it with --repo_env or --action_env" % name)
    return value

def _selected(repository):
    """The ROCm that the rules of jax 0.10.2 would use; they download one if nothing selects another."""
    variables = repository.os.environ
    if variables.get("TF_ROCM_MULTIPLE_PATHS"):
        return variables["TF_ROCM_MULTIPLE_PATHS"].split(":")[0]
    if variables.get("ROCM_PATH", "").strip():
        return variables["ROCM_PATH"]
    if variables.get("ROCM_DISTRO_URL"):
        fail("would download the ROCm %s" % variables["ROCM_DISTRO_URL"])
    version = variables.get("ROCM_DISTRO_VERSION", "rocm_7.12.0_gfx908")
    if version != "rocm_7.12.0_gfx908":
        fail("Unknown ROCM_DISTRO_VERSION: %s. Available versions: rocm_7.12.0_gfx908" % version)
    fail("would download the ROCm " + version)

# The files of a ROCm that actions can see, as XLA selects them (toolchain_data in third_party/gpus/rocm/BUILD.tpl of jax
# 0.11.0): device libraries below amdgcn and in clang's resource folder, and nowhere else. XLA selects the libraries of
# the compiler too.
_TOOLCHAIN = [
    ".info/version",
    "amdgcn/**",
    "bin/hipcc",
    "include/**",
    "lib/llvm/bin/*",
    "lib/llvm/lib/clang/*/include/**",
    "lib/llvm/lib/clang/*/lib/**/*.bc",
    "share/hip/version",
]

# Bazel hashes these 200 MB in each build, so only actions of remote builds have them as inputs. In a local sandbox, the
# compiler is a link, and finds its libraries where the link leads.
_REMOTE = False
_TOOLCHAIN_LIBRARIES = ["lib/llvm/lib/lib*.so.*"]

def _rocm_impl(repository):
    if repository.os.environ.get("TF_NEED_ROCM", "") != "1":
        # jaxlib is built without one.
        _write(repository, "", [])
        return
    rocm = _selected(repository)
    targets = [word for word in _needed(repository, "TF_ROCM_AMDGPU_TARGETS").split(",") if word]
    told = repository.read(rocm + "/.info/version").strip()
    repository.symlink(rocm, "rocm/rocm_dist")
    _write(repository, told, targets)

def _write(repository, told, targets):
    repository.file("BUILD.bazel", "")
    repository.file("rocm/rocm.bzl", "ROCM_VERSION = %r\nTARGETS = %r\n" % (told, targets))
    repository.file("rocm/BUILD.bazel", """
load("@jax//rocm:flags.bzl", "string_flag")

package(default_visibility = ["//visibility:public"])

filegroup(
    name = "toolchain_data",
    srcs = glob(%r, allow_empty = True),
)

filegroup(
    name = "hip_libs",
    srcs = glob(["rocm_dist/lib/libamdhip64.so"], allow_empty = True),
)

string_flag(
    name = "rocm_path_type",
    build_setting_default = "hermetic",
)

platform(
    name = "linux_x64",
    constraint_values = ["@platforms//os:linux", "@platforms//cpu:x86_64"],
)
""" % ["rocm_dist/" + pattern for pattern in _TOOLCHAIN + (_TOOLCHAIN_LIBRARIES if _REMOTE else [])])

rocm_configure = repository_rule(
    implementation = _rocm_impl,
    environ = [
        "ROCM_DISTRO_URL",
        "ROCM_DISTRO_VERSION",
        "ROCM_PATH",
        "TF_NEED_ROCM",
        "TF_ROCM_AMDGPU_TARGETS",
        "TF_ROCM_MULTIPLE_PATHS",
    ],
    local = True,
)

def _python_impl(repository):
    version = _needed(repository, "HERMETIC_PYTHON_VERSION")
    tag = "cp" + version.replace(".", "")
    python = repository.path("/opt/python/%s-%s/bin/python3" % (tag, tag))
    if not python.exists:
        fail("there is no Python %s in /opt/python" % version)
    said = repository.execute([python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"])
    if said.return_code:
        fail(said.stderr)
    repository.file("BUILD.bazel", "")
    text = "PYTHON = %r\nTAG = %r\nINCLUDE = %r\n" % (str(python), tag, said.stdout.strip())
    repository.file("python.bzl", text)

python_configure = repository_rule(implementation = _python_impl, environ = ["HERMETIC_PYTHON_VERSION"])

def _wheel_impl(repository):
    version = repository.read(repository.attr.version).split("_version = \"")[1].split("\"")[0]
    kind = repository.os.environ.get("ML_WHEEL_TYPE", "snapshot")
    suffix = repository.os.environ.get("ML_WHEEL_VERSION_SUFFIX", "") if kind == "release" else ".dev0+selfbuilt"
    repository.file("BUILD.bazel", "")
    repository.file("wheel.bzl", "WHEEL_VERSION = %r\n" % (version + suffix))

wheel_configure = repository_rule(
    implementation = _wheel_impl,
    attrs = {"version": attr.label()},
    environ = ["ML_WHEEL_TYPE", "ML_WHEEL_VERSION_SUFFIX"],
)

def _configure_impl(_):
    rocm_configure(name = "local_config_rocm")
    python_configure(name = "local_config_python")
    wheel_configure(name = "jax_wheel", version = "//jax:version.py")

configure = module_extension(implementation = _configure_impl)
