"""What went wrong with kernel modules elsewhere, and the tests here that see each of it refused."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from core import targets
from core.errors import RequestError

TESTS = Path(__file__).parents[1]
MISTAKES: dict[str, dict[str, tuple[str, ...]]] = {
    "a code object that is not there ends the process, as if all were well": {
        "integration/test_kernel_errors.py": (
            "test_a_missing_object_is_named_and_found_once_it_is_there",
            "test_a_library_that_was_not_told_its_folder_says_so",
            "test_whatever_is_overwritten_the_process_survives",
        ),
        "integration/test_load_gate.py": ("test_whatever_a_process_does_is_a_finding",),
        "integration/test_compile_gate.py": ("test_a_process_that_does_not_end_well",),
    },
    "without targets the compiler takes one of its own": {
        "unit/test_kernel_recipe.py": ("test_what_cannot_be_built_whole_is_refused",),
        "unit/test_kernel_wheel.py": ("test_each_way_to_break_it_is_named", "test_a_wheel_for_other_targets_fails"),
        "integration/test_kernels.py": ("test_every_launcher_and_portable_kernel_is_built_for_every_target",),
    },
    "a generator fails and nobody looks": {
        "integration/test_kernels_rocm.py": (
            "test_generators_that_fail_or_write_something_else_are_errors",
            "test_few_instances_need_no_count_and_none_is_an_error",
        ),
    },
    "flags that a compiler does not know are dropped": {
        "integration/test_kernels.py": ("test_a_flag_that_the_compiler_would_drop_is_an_error",),
    },
    "a target without rows in the tables gives nothing, and no error": {
        "unit/test_kernel_recipe.py": ("test_what_cannot_be_built_whole_is_refused",),
        "unit/test_kernel_checks.py": ("test_each_mistake_in_a_table_or_an_object_is_named",),
        "integration/test_kernel_errors.py": ("test_a_target_without_kernels_names_the_folders",),
    },
    "of several targets the last one is built": {
        "unit/test_kernel_mistakes.py": ("test_targets_that_are_joined_otherwise_are_refused",),
        "unit/test_kernel_graph.py": ("test_another_target_leaves_every_other_key_as_it_is",),
        "integration/test_kernels.py": ("test_another_target_compiles_that_target_alone",),
    },
    "libraries are missing, and an empty wheel is published": {
        "unit/test_kernel_recipe.py": ("test_a_partial_wheel_says_what_it_lacks",),
        "unit/test_kernel_wheel.py": ("test_a_wheel_without_modules_is_an_error",),
        "integration/test_kernels.py": ("test_a_part_of_the_modules_is_refused_or_marked",),
    },
    "code objects of every target are packed": {
        "integration/test_kernels.py": ("test_launchers_for_two_targets_stay_small",),
    },
    "what is kept does not know the target, the compiler, the ROCm or the image": {
        "unit/test_kernel_graph.py": (
            "test_whatever_decides_a_library_is_part_of_its_key",
            "test_whatever_decides_a_code_object_is_part_of_its_key",
        ),
        "unit/test_kernel_devicelib.py": ("test_flags_and_headers_of_a_device_lib_decide_what_is_made",),
        "integration/test_kernels_here.py": (
            "test_parts_of_several_machines_are_joined_and_a_compiler_cache_knows_the_rocm",
        ),
    },
    "modules are loaded by the alphabet, what fails is a line in a log, and symbols are everybody's": {
        "jax_aiter/check_loader.py": (
            "check_a_module_is_loaded_after_those_that_it_needs",
            "check_what_is_wrong_with_a_module_is_named",
            "check_its_symbols_are_its_own",
        ),
    },
    "a registration that JAX takes is thought to be one that works": {
        "jax_aiter/check_loader.py": (
            "check_the_probe_reads_what_a_handler_says",
            "check_a_handler_newer_than_jaxlib_is_refused_before_xla_sees_it",
            "check_what_xla_refuses_is_told",
        ),
        "integration/test_kernel_arguments.py": ("test_handlers_declare_what_modules_toml_says",),
    },
    "kernels are kept without a lock, and for no device in particular": {
        "integration/test_kernel_choice.py": ("test_eight_threads_on_two_devices_load_each_object_once",),
        "jax_aiter/check_loader.py": ("check_threads_load_a_module_once",),
    },
}
"""Mistake -> file -> tests that make it, and see it refused."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_tests(mistake: str) -> None:
    for file, names in MISTAKES[mistake].items():
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert set(names) - there == set()


@pytest.mark.parametrize("spec", ["gfx942;gfx950", "gfx942:gfx950", "gfx942|gfx950"])
def test_targets_that_are_joined_otherwise_are_refused(spec: str) -> None:
    with pytest.raises(RequestError, match="gfx950"):
        targets.expand(spec)
