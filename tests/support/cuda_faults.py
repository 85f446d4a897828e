"""Suite with tests that break NVIDIA GPUs or their own process: `python -m tests.support.cuda_faults FOLDER`.

The folder serves as `--jax-tests` of `gate device --platform cuda`. Of its 245 tests, exactly `CULPRITS` must fail or
crash, and none may be flaky; on one GPU, the tests of pair_test.py are left out.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.files import write_files

_SCRIPT = "export JAX_SKIP_SLOW_TESTS=true\npython -m pytest tests\n"
_SETTINGS = """
[tool.pytest.ini_options]
python_files = '*_test.py'
addopts = '-p no:hypothesispytest --import-mode=importlib'
markers = ['multiaccelerator: needs several devices']
pythonpath = ['tests']
"""
_KERNEL = '''
"""A kernel that writes to an unmapped address, launched in jax's own context."""
import ctypes

import pytest

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry bad() {
  .reg .b64 %rd1;
  .reg .b32 %r1;
  mov.u64 %rd1, 16;
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
"""


def check(code, name):
    assert code == 0, f"{name} returned {code}"


def launch(number=0):
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        pytest.skip("no CUDA")
    check(cuda.cuInit(0), "cuInit")
    device, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuDeviceGet(ctypes.byref(device), number), "cuDeviceGet")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "retain")
    check(cuda.cuCtxPushCurrent_v2(context), "push")
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX), "cuModuleLoadData")
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"bad"), "cuModuleGetFunction")
    check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None), "cuLaunchKernel")
    cuda.cuCtxPopCurrent_v2(ctypes.byref(context))
'''
_SILENT = '''
"""The culprit starts the kernel, does not wait for it, and ends without an error."""
import jax.numpy as jnp
import pytest
from bad_kernel import launch


def add(n):
    assert int((jnp.arange(1000) + n).sum()) == 499500 + 1000 * n


@pytest.mark.parametrize("n", range(60))
def test_before(n):
    add(n)


def test_culprit():
    add(1)
    launch()


@pytest.mark.parametrize("n", range(60))
def test_after(n):
    add(n)
'''
_RAISES = '''
"""The culprit waits for the kernel, and jax reports the error."""
import jax.numpy as jnp
import pytest
from bad_kernel import launch


@pytest.mark.parametrize("n", range(40))
def test_before(n):
    assert float(jnp.ones((100, 100)).sum()) == 10000


def test_culprit():
    launch()
    assert float(jnp.ones((100, 100)).sum()) == 10000


@pytest.mark.parametrize("n", range(40))
def test_after(n):
    assert float(jnp.ones((100, 100)).sum()) == 10000
'''
_PAIR = '''
"""The culprit breaks the last of several devices."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bad_kernel import launch

pytestmark = pytest.mark.multiaccelerator


def both(n):
    count = jax.device_count()
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    x = jax.device_put(jnp.arange(count * 8) + n, spec)
    assert int(jax.jit(jnp.sum)(x)) == sum(range(count * 8)) + count * 8 * n
    assert len(x.devices()) == count > 1


@pytest.mark.parametrize("n", range(10))
def test_before(n):
    both(n)


def test_culprit():
    both(1)
    launch(jax.device_count() - 1)


@pytest.mark.parametrize("n", range(10))
def test_after(n):
    both(n)
'''
_KILLED = """
import os
import signal

import jax.numpy as jnp
import pytest


@pytest.mark.parametrize("n", range(20))
def test_fine(n):
    assert int(jnp.arange(n).sum()) == n * (n - 1) // 2


def test_kills():
    os.kill(os.getpid(), signal.SIGKILL)


def test_leaves():
    os._exit(3)
"""
FILES = {
    "ci/run_pytest_cuda.sh": _SCRIPT,
    "pyproject.toml": _SETTINGS,
    "tests/bad_kernel.py": _KERNEL,
    "tests/silent_test.py": _SILENT,
    "tests/raises_test.py": _RAISES,
    "tests/pair_test.py": _PAIR,
    "tests/killed_test.py": _KILLED,
}
CULPRITS = (
    "tests/killed_test.py::test_kills",
    "tests/killed_test.py::test_leaves",
    "tests/pair_test.py::test_culprit",
    "tests/raises_test.py::test_culprit",
    "tests/silent_test.py::test_culprit",
)


if __name__ == "__main__":
    write_files(Path(sys.argv[1]), FILES)
