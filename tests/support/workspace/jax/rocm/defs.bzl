"""HIP objects, extension modules and wheels."""

load("@jax_wheel//:wheel.bzl", "WHEEL_VERSION")
load("@local_config_python//:python.bzl", "INCLUDE", "PYTHON", "TAG")
load("@local_config_rocm//rocm:rocm.bzl", "ROCM_VERSION", "TARGETS")
load("//rocm:flags.bzl", "Text")

# Below the folder of an action, here and on remote executors; there need not be a ROCm anywhere else.
_ROCM = Label("@local_config_rocm//rocm:rocm.bzl").workspace_root + "/rocm/rocm_dist"

def _hip_object_impl(context):
    if not TARGETS:
        fail("this build is without ROCm: give --config=rocm")
    object = context.actions.declare_file(context.label.name + ".o")
    arguments = context.actions.args()
    arguments.add_all(["-x", "hip", "-c", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "--rocm-path=" + _ROCM])

    # Parsing all of clang's and HIP's device headers takes two thirds of the time.
    arguments.add_all(["-nogpuinc", "-isystem", _ROCM + "/include"])
    arguments.add_all(["--offload-arch=" + target for target in TARGETS])

    # Objects do not depend on the folder that they are compiled in.
    arguments.add_all(["-fuse-cuid=none", context.file.src, "-o", object])
    context.actions.run(
        executable = _ROCM + "/bin/hipcc",
        arguments = [arguments],
        inputs = depset([context.file.src], transitive = [context.attr._rocm.files]),
        outputs = [object],
        env = {"HIP_CLANG_PATH": _ROCM + "/lib/llvm/bin", "ROCM_VERSION": ROCM_VERSION},
        use_default_shell_env = True,
        mnemonic = "HipCompile",
        progress_message = "Compiling " + context.file.src.short_path + " for " + ",".join(TARGETS),
    )
    return [DefaultInfo(files = depset([object]))]

hip_object = rule(
    implementation = _hip_object_impl,
    attrs = {
        "src": attr.label(allow_single_file = [".hip"], mandatory = True),
        "_rocm": attr.label(default = "@local_config_rocm//rocm:toolchain_data"),
    },
)

# Where the ROCm of whoever installs a wheel may be. Nobody can make this list longer afterwards.
_SEARCHED = [
    "$$ORIGIN/%s/%s/lib" % (up, package)
    for up in ["..", "../.."]
    for package in ["_rocm_sdk_core", "_rocm_sdk_libraries", "_rocm_sdk_libraries_gfx94X_dcgpu"]
] + [
    "/usr/local/lib/python3.%d/dist-packages/_rocm_sdk_core/lib" % minor
    for minor in range(9, 16)
] + ["/opt/rocm/lib"]

def rocm_library(name, srcs, kernels = None, links_hip = True, **more):
    """A shared library of that very name, with device code where there are kernels."""
    objects = []
    if kernels:
        hip_object(name = name + ".kernels", src = kernels)
        objects = [":" + name + ".kernels"]
    native.cc_binary(
        name = name,
        srcs = srcs + objects,
        linkshared = True,
        additional_linker_inputs = ["exports.lds", "@local_config_rocm//rocm:hip_libs"],
        linkopts = [
            "-Wl,--version-script=$(location exports.lds)",
            "-L%s/lib" % _ROCM,
        ] + ["-Wl,-rpath," + folder for folder in _SEARCHED] + (["-lamdhip64"] if links_hip else []),
        **more
    )

def extension(name, kernels = None):
    """An extension module for the build's Python; like jaxlib's, it leaves HIP to whoever loaded it before."""
    rocm_library(
        name = name + ".so",
        srcs = ["extension.c"],
        kernels = kernels,
        links_hip = False,
        copts = ["-isystem", INCLUDE],
        local_defines = ["MODULE=" + name],
    )

def _wheel_impl(context):
    tags = ("%s-%s" % (TAG, TAG)) if context.attr.python else "py3-none"
    file = "dist/%s-%s-%s-manylinux_2_27_x86_64.whl" % (context.attr.project, WHEEL_VERSION, tags)
    wheel = context.actions.declare_file(file)
    arguments = context.actions.args()
    arguments.add_all([context.file._script, wheel])
    arguments.add("--commit=" + context.attr._commit[Text].value)
    for target, folder in context.attr.files.items():
        arguments.add_all(["%s=%s" % (folder, file.path) for file in target.files.to_list()])
    context.actions.run(
        executable = PYTHON,
        arguments = [arguments],
        inputs = depset([context.file._script], transitive = [target.files for target in context.attr.files]),
        outputs = [wheel],
        use_default_shell_env = True,
        mnemonic = "BuildJaxWheel",
        progress_message = "Packing " + file,
    )
    return [DefaultInfo(files = depset([wheel]))]

jax_wheel = rule(
    implementation = _wheel_impl,
    attrs = {
        "files": attr.label_keyed_string_dict(allow_files = True),
        "project": attr.string(mandatory = True),
        "python": attr.bool(),
        "_commit": attr.label(default = "//jaxlib/tools:jaxlib_git_hash"),
        "_script": attr.label(default = "//jaxlib/tools:pack.py", allow_single_file = True),
    },
)
