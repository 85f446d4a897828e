"""Faults of the files and metadata of wheels."""

from __future__ import annotations

from tests.support.faults import injections as make
from tests.support.faults.injections import PACKAGE
from tests.support.faults.model import RNN, TRITON, Fault, caught

LOADER = "jax_plugins/xla_rocm7"
"""Package of pjrt."""

FAULTS = (
    Fault(
        name="missing version.py",
        how="removed from the plugin",
        inject=make.without("plugin", f"{PACKAGE}/version.py"),
        catches=caught("load", "package-broken", f"{PACKAGE}/version.py", "Build the wheel with this file"),
    ),
    Fault(
        name="entry point missing",
        how="entry_points.txt removed from pjrt",
        inject=make.without("pjrt", "{info}/entry_points.txt"),
        catches=caught("inspection", "entry-point-missing", "jax_plugins", "Add a `jax_plugins` entry point")
        + caught("load", "entry-point-missing", "entry_points.txt", "Add the package to the group jax_plugins"),
        wheel="pjrt",
    ),
    Fault(
        name="entry point to a missing module",
        how="pjrt's entry point names jax_plugins.xla_rocm9",
        inject=make.text("pjrt", "{info}/entry_points.txt", "jax_plugins.xla_rocm7", "jax_plugins.xla_rocm9"),
        catches=caught("inspection", "entry-point-broken", "jax_plugins.xla_rocm9", "Point it at a module"),
        wheel="pjrt",
    ),
    Fault(
        name="version.py of another version",
        how="0.10.1 in the plugin's version.py",
        inject=make.text("plugin", f"{PACKAGE}/version.py", "0.10.2", "0.10.1"),
        catches=caught("inspection", "version-stale", f"{PACKAGE}/version.py", "Rewrite _release_version"),
    ),
    Fault(
        name="wrong pin",
        how="the plugin requires pjrt ==0.10.1",
        inject=make.text(
            "plugin", "{info}/METADATA", "jax-rocm7-pjrt==0.10.2+rocm7.2.0.gfx942.gfx950", "jax-rocm7-pjrt==0.10.1"
        ),
        catches=caught("inspection", "pin-stale", "jax-rocm7-pjrt==0.10.1", "Rewrite the pin"),
    ),
    Fault(
        name="no requirement on jaxlib",
        how="removed from pjrt's METADATA",
        inject=make.text("pjrt", "{info}/METADATA", "Requires-Dist: jaxlib>=0.10.2,<0.10.3\n", ""),
        catches=caught("inspection", "jaxlib-unpinned", "jaxlib", "Add the range of jaxlib", warns=True)
        + caught("install", "pair-accepted", "jaxlib 0.11.0", "Restrict jaxlib in the wheel's Requires-Dist"),
        wheel="pjrt",
    ),
    Fault(
        name="missing Requires-Python",
        how="removed from the plugin's METADATA",
        inject=make.text("plugin", "{info}/METADATA", "Requires-Python: >=3.11\n", ""),
        catches=caught("inspection", "requires-python-missing", "any Python", "Add Requires-Python", warns=True),
    ),
    Fault(
        name="purelib",
        how="`Root-Is-Purelib: true` in the plugin's WHEEL",
        inject=make.text("plugin", "{info}/WHEEL", "Root-Is-Purelib: false", "Root-Is-Purelib: true"),
        catches=caught("inspection", "purelib-with-elf", "Root-Is-Purelib", "Write `Root-Is-Purelib: false`"),
    ),
    Fault(
        name="WHEEL for another Python than the filename",
        how="Tag: cp311-cp311 in the WHEEL of the wheel for 3.12",
        inject=make.text("plugin", "{info}/WHEEL", "Tag: cp312-cp312", "Tag: cp311-cp311"),
        catches=caught("inspection", "tag-mismatch", "cp311-cp311", "Write the same tags"),
    ),
    Fault(
        name="duplicate file in RECORD",
        how="`_rnn.so` listed twice",
        inject=make.record(make.twice),
        catches=caught("inspection", "record-duplicate-entry", RNN, "Download the wheel again"),
    ),
    Fault(
        name="wrong hash in RECORD",
        how="the hashes of `_rnn.so` and `_prng.so` swapped",
        inject=make.record(make.wrong_hash),
        catches=caught("inspection", "record-wrong-hash", RNN, "Download the wheel again"),
    ),
    Fault(
        name="file missing in RECORD",
        how="the entry of `_rnn.so` removed",
        inject=make.record(make.unlisted),
        catches=caught("inspection", "record-missing-entry", RNN, "Download the wheel again"),
    ),
    Fault(
        name="damaged archive",
        how="one bit of the compressed `_triton.so` flipped",
        inject=make.damaged_archive,
        catches=caught("inspection", "member-damaged", TRITON, "Download the wheel again"),
    ),
    Fault(
        name="wheel altered after staging",
        how="one bit of the staged plugin flipped",
        inject=make.altered_after_staging,
        catches=caught("inspection", "gate-error", "sha256", "Stage the set again"),
    ),
    Fault(
        name="false version of JAX in wheels.json",
        how="jax_version 0.10.1 in the record of a set for 0.10.2",
        inject=make.recorded(jax_version="0.10.1"),
        catches=caught("inspection", "wheels-json-untrue", "jax_version", "Build and stage the set again"),
        wheel="",
    ),
    Fault(
        name="false Pythons in wheels.json",
        how="3.13 in the record of a set with wheels for 3.12",
        inject=make.recorded(python_versions=("3.13",)),
        catches=caught("inspection", "wheels-json-untrue", "python_versions", "Build and stage the set again"),
        wheel="",
    ),
    Fault(
        name="false ROCm in wheels.json",
        how="rocm_version 7.2.1 in the record of a set that was built for 7.2.0",
        inject=make.recorded(rocm_version="7.2.1"),
        catches=caught("inspection", "wheels-json-untrue", "rocm_version", "Build and stage the set again"),
        wheel="",
    ),
    Fault(
        name="code at every start of Python",
        how="a jax.pth beside the package of pjrt",
        inject=make.added("pjrt", "jax.pth", b"import os\n"),
        catches=caught("inspection", "member-runs-at-start", "jax.pth", "Leave the file out"),
        wheel="pjrt",
    ),
    Fault(
        name="private key among the files",
        how="deploy.pem in the package of the plugin",
        inject=make.added("plugin", f"{PACKAGE}/deploy.pem", b"-----BEGIN PRIVATE KEY-----\n"),
        catches=caught("inspection", "member-unexpected", f"{PACKAGE}/deploy.pem", "Leave them out"),
    ),
    Fault(
        name="copy of a library",
        how="`_rnn.so.bak` beside `_rnn.so`",
        inject=make.added("plugin", f"{PACKAGE}/_rnn.so.bak", b"\x7fELF"),
        catches=caught("inspection", "member-unexpected", f"{PACKAGE}/_rnn.so.bak", "Leave them out"),
    ),
    Fault(
        name="namespace package closed",
        how="jax_plugins/__init__.py in pjrt",
        inject=make.added("pjrt", "jax_plugins/__init__.py", b""),
        catches=caught("inspection", "member-outside", "jax_plugins/__init__.py", "own packages only"),
        wheel="pjrt",
    ),
    Fault(
        name="program of another project",
        how="pip among the scripts of the plugin",
        inject=make.added("plugin", "{data}/scripts/pip", b"#!python\n"),
        catches=caught("inspection", "member-outside", "scripts/pip", "own packages only"),
    ),
    Fault(
        name="bytecode beside its source",
        how="a __init__.pyc in the plugin, which some installers and Pythons prefer",
        inject=make.added("plugin", f"{PACKAGE}/__init__.pyc", b"\xa7\r\r\n\1\0\0\0"),
        catches=caught("inspection", "bytecode-included", f"{PACKAGE}/__init__.pyc", "Leave them out"),
    ),
    Fault(
        name="file of installers",
        how="direct_url.json in the .dist-info of the plugin",
        inject=make.added("plugin", "{info}/direct_url.json", b"{}"),
        catches=caught("inspection", "metadata-invalid", "direct_url.json", "Correct it"),
    ),
    Fault(
        name="program among the entry points",
        how="pip as a console script of pjrt",
        inject=make.text(
            "pjrt",
            "{info}/entry_points.txt",
            "[jax_plugins]",
            "[console_scripts]\npip = jax_plugins.xla_rocm7:initialize\n[jax_plugins]",
        ),
        catches=caught("inspection", "entry-point-unexpected", "console_scripts", "jax_plugins"),
        wheel="pjrt",
    ),
    Fault(
        name="loader under a second name",
        how="pjrt's entry points name jax_plugins.xla_rocm7 as cuda12 too",
        inject=make.text(
            "pjrt", "{info}/entry_points.txt", "[jax_plugins]\n", "[jax_plugins]\ncuda12 = jax_plugins.xla_rocm7\n"
        ),
        catches=caught("inspection", "entry-point-unexpected", "cuda12", "Declare entry points"),
        wheel="pjrt",
    ),
    Fault(
        name="requirement on another project",
        how="the plugin requires numpy<1",
        inject=make.text(
            "plugin", "{info}/METADATA", "Requires-Dist: jaxlib", "Requires-Dist: numpy<1\nRequires-Dist: jaxlib"
        ),
        catches=caught("inspection", "requirement-unexpected", "numpy", "Require jax, jaxlib"),
    ),
    Fault(
        name="requirement from a URL",
        how="the plugin requires pjrt from a file",
        inject=make.text(
            "plugin",
            "{info}/METADATA",
            "jax-rocm7-pjrt==0.10.2+rocm7.2.0.gfx942.gfx950",
            "jax-rocm7-pjrt @ https://example.org/jax_rocm7_pjrt-0.10.2-py3-none-any.whl",
        ),
        catches=caught("inspection", "requirement-direct", "jax-rocm7-pjrt", "indexes refuse URLs"),
    ),
    Fault(
        name="pin that a marker excludes",
        how='`; python_version < "3"` after the pin of pjrt',
        inject=make.text(
            "plugin",
            "{info}/METADATA",
            "0.10.2+rocm7.2.0.gfx942.gfx950\nRequires-Dist: jaxlib",
            '0.10.2+rocm7.2.0.gfx942.gfx950; python_version < "3"\nRequires-Dist: jaxlib',
        ),
        catches=caught("inspection", "pin-stale", "which a marker can exclude", "Rewrite the pin"),
    ),
    Fault(
        name="Requires-Python above the wheel's Python",
        how=">=3.13 in the METADATA of the wheel for 3.12",
        inject=make.text("plugin", "{info}/METADATA", "Requires-Python: >=3.11", "Requires-Python: >=3.13"),
        catches=caught("inspection", "requires-python-wrong", ">=3.13", "Write the Pythons"),
    ),
    Fault(
        name="WHEEL of an unknown version",
        how="Wheel-Version: 2.0 in the plugin",
        inject=make.text("plugin", "{info}/WHEEL", "Wheel-Version: 1.0", "Wheel-Version: 2.0"),
        catches=caught("inspection", "metadata-invalid", "Wheel-Version 2.0", "Correct it"),
    ),
    Fault(
        name="false pin in wheels.json",
        how="jaxlib 0.12.0 in the record of a set for 0.10.2",
        inject=make.recorded(pins={"jax": "0.10.2", "jaxlib": "0.12.0"}),
        catches=caught("inspection", "wheels-json-untrue", "jaxlib is 0.12.0", "Build and stage the set again"),
        wheel="",
    ),
    Fault(
        name="no pin of jax in wheels.json",
        how="only jaxlib is pinned",
        inject=make.recorded(pins={"jaxlib": "0.10.2"}),
        catches=caught("inspection", "wheels-json-untrue", "jax, which the gates install", "Build and stage the set"),
        wheel="",
    ),
    Fault(
        name="set in the index of another family",
        how="the index of gfx942 and gfx950 is recorded as gfx110X-all",
        inject=make.recorded(index="gfx110X-all"),
        catches=caught("inspection", "wheels-json-untrue", "it is gfx110X-all", "Build and stage the set again"),
        wheel="",
    ),
    Fault(
        name="two versions in METADATA",
        how="Version twice in the plugin's METADATA",
        inject=make.text("plugin", "{info}/METADATA", "Summary:", "Version: 1.0\nSummary:"),
        catches=caught("inspection", "metadata-invalid", "METADATA", "Correct it"),
    ),
    Fault(
        name="syntax of a newer Python",
        how="the statement `type` of Python 3.12 in a module of pjrt that nothing imports",
        inject=make.added("pjrt", "jax_plugins/xla_rocm7/extra.py", b"type Shape = tuple[int, ...]\n"),
        catches=caught("inspection", "python-invalid", "extra.py", "lowest Python"),
        wheel="pjrt",
    ),
    Fault(
        name="invalid escape sequence",
        how="`'\\d'` in a module of pjrt",
        inject=make.added("pjrt", "jax_plugins/xla_rocm7/extra.py", b"DIGITS = '\\d'\n"),
        catches=caught("inspection", "python-warns", "extra.py", "Correct it", warns=True),
        wheel="pjrt",
    ),
    Fault(
        name="assert that acts",
        how="pjrt's `_register.py` calls `_hand_over` in an assert, which `python -O` leaves out",
        inject=make.text(
            "pjrt",
            f"{LOADER}/_register.py",
            "        _hand_over(",
            "        assert not _hand_over(",
        ),
        catches=caught("inspection", "assert-acts", "_register.py", "`python -O`", warns=True),
        wheel="pjrt",
    ),
    Fault(
        name="loader that fails with a GPU",
        how="AttributeError in a line of pjrt's `_diagnose.py` that only a machine with a GPU runs",
        inject=make.text("pjrt", f"{LOADER}/_diagnose.py", 'names = ", ".join(', 'names = ", ".joined('),
        catches=caught("load", "loader-wrong", "with one gfx942, jax should start ROCm", "Fix the loader"),
        wheel="pjrt",
    ),
    Fault(
        name="plugin that fails with a GPU",
        how="NameError in a line of the plugin's `__init__.py` that only a machine with a GPU runs",
        inject=make.text("plugin", f"{PACKAGE}/__init__.py", "origin = Path(", "origin = Paths("),
        catches=caught("load", "loader-wrong", "name 'Paths' is not defined", "Fix the loader"),
        wheel="",
    ),
    Fault(
        name="name of a newer Python",
        how="itertools.pairs in a function of pjrt's `_gpus.py` that no simulated machine calls",
        inject=make.text(
            "pjrt",
            f"{LOADER}/_gpus.py",
            "def shm_mib(",
            "def pairs(items):\n    import itertools\n\n    return itertools.pairs(items)\n\n\ndef shm_mib(",
        ),
        catches=caught("load", "name-missing", "itertools has no pairs", "lowest Python"),
        wheel="pjrt",
    ),
    Fault(
        name="loader that does not know `gpu`",
        how="JAX_PLATFORMS=gpu is no request for ROCm in pjrt's `__init__.py`",
        inject=make.text("pjrt", f"{LOADER}/__init__.py", 'platforms & {"rocm", "gpu"}', 'platforms & {"rocm"}'),
        catches=caught("load", "loader-wrong", "with no GPU and JAX_PLATFORMS=gpu", "Fix the loader"),
        wheel="pjrt",
    ),
    Fault(
        name="ROCm below the CPU",
        how="the priority of the platform in pjrt's `_register.py` is -1",
        inject=make.text("pjrt", f"{LOADER}/_register.py", "PRIORITY = 500", "PRIORITY = -1"),
        catches=caught("load", "loader-wrong", "jax should prefer ROCm", "Fix the loader"),
        wheel="pjrt",
    ),
    Fault(
        name="handlers for CUDA",
        how="pjrt's `_register.py` registers the plugin's custom calls for CUDA",
        inject=make.text(
            "pjrt",
            f"{LOADER}/_register.py",
            'register_custom_call_handler("ROCM"',
            'register_custom_call_handler("CUDA"',
        ),
        catches=caught("load", "loader-wrong", "registers some for CUDA", "Fix the loader"),
        wheel="pjrt",
    ),
    Fault(
        name="loader that accepts every jaxlib",
        how="`accepts` in pjrt's `_versions.py` returns True",
        inject=make.text(
            "pjrt", f"{LOADER}/_versions.py", "def accepts(", "def accepts(*_):\n    return 1\n\n\ndef _(\n"
        ),
        catches=caught("load", "loader-wrong", "should refuse jaxlib 0.0.1", "Fix the loader"),
        wheel="pjrt",
    ),
    Fault(
        name="loader that configures jax",
        how="pjrt's `_register.py` enables jax_enable_x64",
        inject=make.text(
            "pjrt",
            f"{LOADER}/_register.py",
            "        _rocm.set_variables(",
            '        jax.config.update("jax_enable_x64", True)\n        _rocm.set_variables(',
        ),
        catches=caught("load", "loader-wrong", "changes jax.config.jax_enable_x64", "Fix the loader"),
        wheel="pjrt",
    ),
    Fault(
        name="plugin without __init__.py",
        how="removed; Python imports the folder as a namespace package",
        inject=make.without("plugin", f"{PACKAGE}/__init__.py"),
        catches=caught("load", "package-broken", f"{PACKAGE}/__init__.py is missing", "Build the wheel with this file"),
        wheel="",
    ),
    Fault(
        name="range of jaxlib in build_info.json",
        how="another range than in METADATA, with which the loader refuses ROCm wherever there is a GPU",
        inject=make.text("pjrt", f"{LOADER}/build_info.json", ">=0.10.2,<0.10.3", ">=0.12.0,<0.12.1"),
        catches=caught("load", "value-untrue", "requires_jaxlib", "Build the wheel again"),
        wheel="pjrt",
    ),
    Fault(
        name="version overwritten",
        how="`_release_version` assigned twice in the plugin's version.py",
        inject=make.text(
            "plugin", f"{PACKAGE}/version.py", "__version__ =", "_release_version = '0.10.1'\n__version__ ="
        ),
        catches=caught("load", "value-untrue", "version.py __version__", "Build the wheel again"),
    ),
    Fault(
        name="module that prints",
        how="print() in the plugin's build_info.py, which every import of jax runs",
        inject=make.text("plugin", f"{PACKAGE}/build_info.py", "import json\n", "import json\n\nprint('hello')\n"),
        catches=caught("load", "import-prints", f"{PACKAGE} prints when it is imported: hello", "Remove the output"),
    ),
    Fault(
        name="variable of the user overwritten",
        how="the plugin's build_info.py sets XLA_FLAGS",
        inject=make.text(
            "plugin",
            f"{PACKAGE}/build_info.py",
            "import json\n",
            "import json\nimport os\n\nos.environ['XLA_FLAGS'] = ''\n",
        ),
        catches=caught("load", "import-effects", "changes the environment variable XLA_FLAGS", "Leave the process"),
    ),
    Fault(
        name="constraints of another release",
        how="jaxlib 0.10.1 in constraints.txt",
        inject=make.set_file("constraints.txt", "jaxlib==0.10.2", "jaxlib==0.10.1"),
        catches=caught("inspection", "set-file-untrue", "jaxlib 0.10.1, not 0.10.2", "Build and stage the set again"),
        wheel="",
    ),
    Fault(
        name="published wheels as a build from source",
        how="the payload `source` in wheels.json",
        inject=make.requested(payload="source"),
        catches=caught("inspection", "wheels-json-untrue", "its payload is source", "Build and stage the set again"),
        wheel="",
    ),
    Fault(
        name="edited loader",
        how="another number in pjrt's `_diagnose.py`, with which the loader works on every simulated machine",
        inject=make.text("pjrt", f"{LOADER}/_diagnose.py", "SMALL_SHM_MIB = 64", "SMALL_SHM_MIB = 63"),
        catches=caught("inspection", "payload-differs", "not 'SMALL_SHM_MIB = 64'", "have it reviewed"),
        wheel="pjrt",
    ),
    Fault(
        name="additional module",
        how="a `_more.py` in the package of the plugin",
        inject=make.added("plugin", f"{PACKAGE}/_more.py", b"X = 1\n"),
        catches=caught("inspection", "payload-differs", "_more.py is additional", "have it reviewed"),
    ),
    Fault(
        name="edited METADATA",
        how="another Summary in the plugin's METADATA",
        inject=make.text(
            "plugin", "{info}/METADATA", "extension modules (ROCm", "extension modules, experimental (ROCm"
        ),
        catches=caught("inspection", "metadata-differs", "experimental", "have it reviewed"),
    ),
    Fault(
        name="edited build_info.json",
        how="gfx943 among the processors that XLA accepts in pjrt's build_info.json",
        inject=make.text("pjrt", f"{LOADER}/build_info.json", '"gfx942",\n    "gfx950",', '"gfx943",\n    "gfx950",'),
        catches=caught("inspection", "build-info-differs", "is 'gfx943', not 'gfx942'", "have it reviewed"),
        wheel="pjrt",
    ),
    Fault(
        name="archive packed again",
        how="the plugin packed again by zipfile, with the time of its files on disk",
        inject=make.packed_again,
        catches=caught("inspection", "archive-not-canonical", "the time 2024-05-06 07:08:10", "must not pack it again"),
    ),
    Fault(
        name="false size in pylock.toml",
        how="another size of pjrt in the lock of the set",
        inject=make.locked_file("pylock.toml", "size = ", "size = 1"),
        catches=caught("inspection", "set-file-untrue", "packages[0].wheels[0].size", "Build and stage the set again"),
        wheel="",
    ),
    Fault(
        name="false identifier in the bill of materials",
        how="numpy by another name in the purl of sbom.cdx.json",
        inject=make.locked_file("sbom.cdx.json", "pkg:pypi/numpy@", "pkg:pypi/nunpy@"),
        catches=caught("inspection", "set-file-untrue", "purl is 'pkg:pypi/nunpy", "Build and stage the set again"),
        wheel="",
    ),
    Fault(
        name="false request in wheels.json",
        how="a post release in the request of a set without one",
        inject=make.requested(post_release=2),
        catches=caught("inspection", "wheels-json-untrue", "asks for version 0.10.2.post2", "Build and stage the set"),
        wheel="",
    ),
)
