"""Faults of the files and metadata of wheels."""

from __future__ import annotations

from tests.support.faults import injections as make
from tests.support.faults.injections import PACKAGE
from tests.support.faults.model import RNN, TRITON, Fault, caught

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
)
