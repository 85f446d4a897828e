"""Deliberately bad tests, each with its expected verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

INI = "[pytest]\nfilterwarnings =\naddopts = -p no:hypothesispytest\n"
"""Disables a plugin that takes most of each process's start time."""


@dataclass(frozen=True, kw_only=True)
class BadFile:
    """A test file with expected verdicts.

    Attributes:
        verdicts: name of a test, or "" for the whole file -> verdict.
        says: name of a test -> part of its message.
    """

    source: str
    verdicts: Mapping[str, str]
    says: Mapping[str, str] = field(default_factory=dict)


_IMPORTS = (
    "import ctypes, os, pytest, signal, subprocess, sys, threading, time\nfrom pathlib"
    " import Path\n"
)
_DEVICE = (
    "DEVICE = Path(__file__).parent / 'devices' /"
    " f'{os.environ[\"ROCR_VISIBLE_DEVICES\"]}.node'\n"
)
"""File of the fake device of a worker's lease."""


def _among_good(
    verdict: str,
    bad: str,
    says: str = "",
    head: str = "",
) -> BadFile:
    """Return a bad test between good tests.

    The good tests, and further tests in `bad`, must pass.
    """
    name, *also = re.findall(r"def (test_\w+)", bad)
    good = "def test_{0}():\n    assert True\n\n"
    after = "".join(good.format(f"after_{n}") for n in range(3))
    source = f"{_IMPORTS}{head}\n{good.format('before')}{bad}\n\n{after}"
    rest = dict.fromkeys(
        ("test_before", "test_after_0", "test_after_1", "test_after_2", *also), "passed"
    )
    return BadFile(
        source=source,
        verdicts={name: verdict, **rest},
        says={name: says} if says else {},
    )


FILES: Mapping[str, BadFile] = {
    "fail": _among_good(
        "failed", "def test_fail():\n    assert 1 == 2, 'apples'", "apples"
    ),
    "print_machine_error": _among_good(
        "failed",
        "def test_print():\n    print('No space left on device')\n    assert 3 == 4, 'No"
        " space left on device'",
    ),
    "full_disk": _among_good(
        "environment",
        "def test_full():\n    raise OSError(28, 'No space left on device')",
    ),
    # More than the device has.
    "allocate_too_much": _among_good(
        "failed",
        "def test_allocate():\n    raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory"
        " allocating 4398046511104 bytes.')",
    ),
    # Another process has the memory for a while.
    "starve_once": _among_good(
        "passed",
        "def test_starve():\n    if not MARK.exists():\n        MARK.touch()\n        raise"
        " RuntimeError('RESOURCE_EXHAUSTED: Out of memory while trying to allocate"
        " 4.00GiB')",
        head="MARK = Path(__file__).with_suffix('.mark')",
    ),
    # Even alone.
    "starve": _among_good(
        "failed", "def test_starve():\n    raise RuntimeError('hipErrorOutOfMemory')"
    ),
    "flake": _among_good(
        "flaky",
        "def test_flake():\n    first = not MARK.exists()\n    MARK.touch()\n    assert"
        " not first, 'only once'",
        "only once",
        "MARK = Path(__file__).with_suffix('.mark')",
    ),
    "segfault": _among_good(
        "crashed", "def test_segfault():\n    ctypes.string_at(0)", "Segmentation fault"
    ),
    "hang": _among_good(
        "crashed",
        "def test_hang():\n    threading.Event().wait()",
        "still running after",
    ),
    # A good test: the lease is in place before any module of the suite is imported.
    "lease": BadFile(
        source=(
            "import os\nSEEN = [os.environ.get(name) for name in"
            " ('HIP_VISIBLE_DEVICES', 'OMP_NUM_THREADS')]\nDEVICE = os.environ['ROCR_VISIBLE_DEVICES']\n\ndef"
            " test_lease():\n    assert (SEEN, DEVICE in ('3', '5')) == (['0', '1'],"
            " True)\n"
        ),
        verdicts={"test_lease": "passed"},
    ),
    # Later tests of the worker find its state unchanged.
    "leave_state": BadFile(
        source=(
            f"{_IMPORTS}from types import SimpleNamespace\n\nclass Config:\n"
            "    values = {'jax_enable_x64': False}\n\n"
            "    def update(self, name, value):\n        self.values[name] = value\n\n"
            "sys.modules['jax'] = jax = SimpleNamespace(config=Config())\n"
            "VARIABLE = 'ROCR_VISIBLE_DEVICES'\n\ndef state():\n"
            "    return (os.getcwd(), signal.getitimer(signal.ITIMER_REAL),"
            " signal.getsignal(signal.SIGALRM), os.environ[VARIABLE],"
            " dict(jax.config.values))\n\nBEFORE = state()\n\ndef test_leave():\n"
            "    os.chdir('/')\n    signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
            "    signal.alarm(900)\n    os.environ[VARIABLE] = '0,1'\n"
            "    jax.config.update('jax_enable_x64', True)\n"
            "    threading.Thread(target=time.sleep, args=(900,), daemon=True,"
            " name='sleeper').start()\n\n@pytest.mark.parametrize('n', range(4))\n"
            "def test_restored(n):\n    assert state() == BEFORE\n\ndef test_restores(monkeypatch):\n"
            "    monkeypatch.setenv('X', '1')\n    monkeypatch.chdir('/')\n\n"
            "def test_imports():\n    import xml.dom.pulldom\n"
            "    os.environ['OF_A_MODULE'] = '1'\n"
        ),
        verdicts={
            "test_leave": "passed",
            **{f"test_restored[{n}]": "passed" for n in range(4)},
            "test_restores": "passed",
            "test_imports": "passed",
        },
    ),
    "hold_device": _among_good(
        "failed",
        "def test_hold():\n    subprocess.Popen(['sleep', '600'], stdin=DEVICE.open())",
        "behind, which had",
        _DEVICE,
    ),
    "leave_process": _among_good(
        "passed",
        "def test_leave():\n    subprocess.Popen(['sleep', '600'],"
        " start_new_session=True)",
    ),
    # Neither its parent nor its environment shows that a test started it.
    "leave_daemon": _among_good(
        "passed",
        "def test_leave():\n    command = 'env -i setsid sleep 600 > /dev/null 2>&1 &"
        " echo $! > ' + str(PID)\n    subprocess.run(['sh', '-c', command])",
        head="PID = Path(__file__).with_suffix('.pid')",
    ),
    "hold_by_daemon": _among_good(
        "failed",
        "def test_hold():\n    command = f'env -i setsid sleep 600 < {DEVICE} > /dev/null"
        " 2>&1 &'\n    subprocess.run(['sh', '-c', command])\n    time.sleep(0.5)",
        "behind, which had",
        _DEVICE,
    ),
    "kill_itself": _among_good(
        "crashed",
        "def test_kill():\n    os.kill(os.getpid(), signal.SIGKILL)",
        "was killed with SIGKILL",
    ),
    # As by an operator or the out-of-memory killer: the test itself is good.
    "killed_once": _among_good(
        "passed",
        "def test_killed():\n    if not MARK.exists():\n        MARK.touch()\n       "
        " os.kill(os.getpid(), 9)",
        head="MARK = Path(__file__).with_suffix('.mark')",
    ),
    "pytest_exit": _among_good(
        "failed",
        "def test_exit():\n    pytest.exit('done', returncode=0)",
        "tried to end pytest",
    ),
    "fork": _among_good("passed", "def test_fork():\n    os.fork()"),
    "kill_parent_and_go_on": _among_good(
        "crashed",
        "def test_kill():\n    os.kill(os.getppid(), signal.SIGKILL)",
        "that started its worker ended",
    ),
    "import_segfault": BadFile(
        source="import ctypes\nctypes.string_at(0)\n\ndef test_nothing():\n    pass\n",
        verdicts={"": "crashed"},
        says={"": "Segmentation fault"},
    ),
    "import_error": BadFile(
        source="import no_such_module_at_all\n",
        verdicts={"": "failed"},
        says={"": "no_such_module_at_all"},
    ),
    "import_full_disk": BadFile(
        source="raise OSError(28, 'No space left on device')\n",
        verdicts={"": "environment"},
    ),
    "import_sys_exit": BadFile(
        source="import sys\nsys.exit(0)\n",
        verdicts={"": "failed"},
        says={"": "SystemExit"},
    ),
    "skip": BadFile(
        source=(
            "import pytest\n\n@pytest.mark.skip(reason='no TPU')\ndef test_skip():\n   "
            " pass\n\n@pytest.mark.xfail(strict=True)\ndef test_expected():\n    assert"
            " False\n"
        ),
        verdicts={"test_skip": "skipped", "test_expected": "passed"},
        says={"test_skip": "no TPU"},
    ),
    "skip_file": BadFile(
        source="import pytest\npytest.skip('not here', allow_module_level=True)\n",
        verdicts={"": "skipped"},
    ),
    "abort": _among_good("crashed", "def test_abort():\n    os.abort()", "Aborted"),
    "exit": _among_good(
        "crashed", "def test_exit():\n    os._exit(0)", "exited with status 0"
    ),
    "sys_exit": _among_good(
        "failed", "def test_exit():\n    sys.exit(0)", "SystemExit"
    ),
    "terminate": _among_good(
        "crashed",
        "def test_kill():\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(9)",
        "killed with SIGTERM",
    ),
    "interrupt": _among_good(
        "failed", "def test_interrupt():\n    raise KeyboardInterrupt", "end pytest"
    ),
    "recurse": _among_good(
        "failed", "def test_recurse():\n    test_recurse()", "Recursion"
    ),
    "allocate_host": _among_good(
        "failed", "def test_allocate():\n    bytearray(1 << 50)", "MemoryError"
    ),
    "no_device": _among_good(
        "environment", "def test_lost():\n    raise RuntimeError('hipErrorNoDevice')"
    ),
    "fail_with_device_error": _among_good(
        "failed", "def test_fail():\n    pytest.fail('hipErrorNoDevice')"
    ),
    "setup": _among_good(
        "failed",
        "def test_setup(broken):\n    pass",
        "in set-up",
        "@pytest.fixture\ndef broken():\n    raise ValueError('in set-up')\n",
    ),
    "teardown": _among_good(
        "failed",
        "def test_teardown(broken):\n    pass",
        "in tear-down",
        "@pytest.fixture\ndef broken():\n    yield\n    raise ValueError('in tear-down')\n",
    ),
    "strict_xfail": _among_good(
        "failed",
        "@pytest.mark.xfail(strict=True)\ndef test_passes():\n    pass",
        "XPASS",
    ),
    "flood": _among_good(
        "failed",
        "def test_flood():\n    print('x' * (1 << 24))\n    assert 0, 'end'",
        "end",
    ),
    "close_files": _among_good(
        "passed", "def test_close():\n    os.closerange(20, 4096)"
    ),
    "mock_functions": _among_good(
        "passed",
        "def test_mock():\n    time.monotonic = time.time = lambda: 0\n    os.write ="
        " os.open = os.getcwd = None",
    ),
    "binary_text": _among_good(
        "failed", "def test_text():\n    assert 0, 'a\\x00\\udcff\\x1b'", "a"
    ),
    "import_exit": BadFile(source="import os\nos._exit(3)\n", verdicts={"": "crashed"}),
    "import_syntax": BadFile(
        source="def (:\n", verdicts={"": "failed"}, says={"": "SyntaxError"}
    ),
    "unittest": BadFile(
        source=(
            "import unittest\n\nclass T(unittest.TestCase):\n"
            "    def test_fail(self):\n        self.assertEqual(1, 2, 'hipErrorNoDevice')\n"
        ),
        verdicts={"T::test_fail": "failed"},
    ),
    "delete_folder": _among_good(
        "passed",
        "def test_delete(tmp_path):\n    os.chdir(tmp_path)\n    os.rmdir(tmp_path)",
    ),
    "raise_in_thread": _among_good(
        "passed",
        "def test_thread():\n    thread = threading.Thread(target=lambda: 1 // 0)\n"
        "    thread.start()\n    thread.join()",
    ),
    "close_output": _among_good(
        "failed", "def test_close():\n    sys.stdout.close()\n    print()"
    ),
    "break_pytest": _among_good(
        "crashed", "def test_break():\n    os.environ = None", "INTERNALERROR"
    ),
    # Only SIGKILL ends it: it holds the GIL, and ignores the signal for a traceback.
    "hold_gil": _among_good(
        "crashed",
        "def test_hold():\n    signal.signal(signal.SIGABRT, signal.SIG_IGN)\n"
        "    ctypes.PyDLL(None).sleep(600)",
        "still running after",
    ),
    "stop_itself": _among_good(
        "crashed",
        "def test_stop():\n    os.kill(os.getpid(), signal.SIGSTOP)",
        "still running after",
    ),
    "kill_group": _among_good(
        "crashed",
        "def test_kill():\n    os.killpg(0, signal.SIGKILL)",
        "that started its worker ended",
    ),
    "exit_in_thread": _among_good(
        "crashed",
        "def test_exit():\n    threading.Thread(target=os._exit, args=(5,)).start()\n"
        "    time.sleep(9)",
        "exited with status 5",
    ),
    "abort_at_exit": _among_good(
        "passed", "def test_abort():\n    import atexit\n    atexit.register(os.abort)"
    ),
    "expected_crash": _among_good(
        "crashed",
        "@pytest.mark.xfail\ndef test_crash():\n    ctypes.string_at(0)",
        "Segmentation fault",
    ),
    "base_exception": _among_good(
        "failed", "def test_raise():\n    raise GeneratorExit", "GeneratorExit"
    ),
    "exhaust_files": _among_good(
        "crashed",
        "def test_open():\n    files = []\n    while True:\n"
        "        files.append(open('/dev/null'))",
    ),
    "skip_and_crash": _among_good(
        "crashed",
        "def test_skip(dead):\n    pytest.skip('later')",
        "Segmentation fault",
        "@pytest.fixture\ndef dead():\n    yield\n    ctypes.string_at(0)\n",
    ),
    "clear_environment": _among_good(
        "passed", "def test_clear():\n    os.environ.clear()"
    ),
}
"""Name -> file."""


def write(folder: Path, *names: str) -> Path:
    """Write some of the files, and the configuration of the suite."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pytest.ini").write_text(INI)
    for name in names:
        (folder / f"test_{name}.py").write_text(FILES[name].source)
    return folder
