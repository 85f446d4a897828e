"""Composable Kernel's dispatchers have a kernel for exactly the calls that the package makes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.model import KernelRequest
from core.process import HostRunner
from core.report import NoProgress
from kernels.aiter_sources import SourceTree
from kernels.build_context import BuildContext
from kernels.generate import generate
from kernels.module_catalog import load_catalog
from kernels.tests.support.fake.lowered import Environment
from kernels.tests.support.fake.trees import KernelTree
from kernels.tests.support.jax_checks import run_checks

pytestmark = pytest.mark.network
WORDS = (
    (r"/\*.*?\*/", ""),
    (r"&&", " and "),
    (r"\|\|", " or "),
    (r"(\w+)\.compare\(0, (\d+), (\".*?\")\) == 0", r"\1[:\2] == \3"),
    (r"(\w+)\.compare\((\".*?\")\) == 0", r"\1 == \2"),
    (r"(?:mask|bias)_enum::(\w+)", r"'\1'"),
    (r"\btrue\b", "True"),
    (r"\bfalse\b", "False"),
    (r"\bnullptr\b", "None"),
)


def in_python(dispatcher: str) -> str:
    """Return the body of a generated dispatcher as a Python function that answers with a bool."""
    lines = ["def dispatch(t, a, device_name):"]
    body = dispatcher.rpartition("get_device_name();")[2]
    depth = 1
    parts = r"(else if|if)\((.*?)\)\s*\{|(return |\})"
    for keyword, condition, other in re.findall(parts, body, re.S):
        for pattern, text in WORDS:
            condition = re.sub(pattern, text, condition, flags=re.S)
        condition = " ".join(condition.split())
        if other == "}":
            depth -= 1
        elif other and depth > 1:  # the last line of a dispatcher finds no kernel
            lines.append(f"{'  ' * depth}return True")
        elif keyword:
            lines.append(f"{'  ' * depth}{keyword.replace('else ', 'el')} {condition}:")
            depth += 1
    return "\n".join(lines)


def traits(row: dict[str, Any]) -> SimpleNamespace:
    """Return the arguments that the handlers hand to a dispatcher, by their name there."""
    none = "alibi" if row["slopes"] else "no_bias"
    return SimpleNamespace(
        hdim_q=row["depth"],
        hdim_v=row["value_depth"],
        data_type="fp16" if row["dtype"] == "float16" else "bf16",
        is_group_mode=row["packed"],
        is_v_rowmajor=True,
        mask_type="no_mask" if row["window"] == [-1, -1] else "mask_bottom_right",
        bias_type="elementwise_bias" if row["bias"] else none,
        has_dropout=row["dropout"] > 0,
        has_lse=True,
        has_logits_soft_cap=False,
        do_fp8_static_quant=False,
        skip_min_seqlen_q=False,
        has_dbias=False,
        is_deterministic=False,
        seqlen_q=row["queries"],
        seqlen_k=row["keys"],
        cu_seqlen_k_ptr=None,
    )


def test_limits_of_common_kernels_are_those_of_dispatchers(
    kernel_tree: KernelTree, environment: Environment, tmp_path: Path
) -> None:
    tree = SourceTree(
        folder=kernel_tree.source.parent, files={}, origin=None, name="aiter"
    )
    context = BuildContext(
        cache=tmp_path, runner=HostRunner(os.environ), progress=NoProgress()
    )
    dispatchers: dict[str, Any] = {}
    for direction in ("fwd", "bwd"):
        made = generate(
            load_catalog().modules[f"ck_mha_{direction}"],
            tree,
            context,
            KernelRequest(attention="common"),
        )
        text = (made.folder / f"fmha_{direction}_api.cpp").read_text()
        scope: dict[str, Any] = {}
        exec(in_python(text), scope)
        dispatchers[f"jax_aiter_mha_{direction}"] = scope["dispatch"]
    run_checks(environment("0.10.2"), tmp_path / "run", "case_limits.py")
    accepted = 0
    for row in json.loads((tmp_path / "run" / "limits.json").read_text()):
        accepted += row["fits"]
        if row["packed"] and row["window"] == [100, 100] and "bwd" in row["call"]:
            continue  # the handler may find that the window reaches all keys
        call = traits(row)
        for gfx in ("gfx942", "gfx950"):
            found = dispatchers[row["call"]](call, call, gfx)
            assert bool(found) is row["fits"], (gfx, row)
    assert accepted > 300
