"""Deliberately bad tests, each with its expected verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

INI = "[pytest]\nfilterwarnings =\naddopts = -p no:hypothesispytest\n"
"""Disables a plugin that takes most of each process's start time."""


@dataclass(frozen=True, kw_only=True)
class BadFile:
    """A file of tests.

    Attributes:
        verdicts: test, without the file, or "" for the file as a whole -> verdict.
        says: test -> part of its message.
    """

    source: str
    verdicts: Mapping[str, str]
    says: Mapping[str, str] = field(default_factory=dict)


_DEVICE = (
    "import os\nfrom pathlib import Path\n"
    "DEVICE = Path(__file__).parent / 'devices' / f'{os.environ[\"ROCR_VISIBLE_DEVICES\"]}.node'\n"
)
"""File of the fake device of a worker's lease."""


def _among_good(bad: str, name: str, verdict: str, says: str = "", head: str = "", also: str = "") -> BadFile:
    """Return a bad test between good ones; those, and the test named `also`, must pass."""
    good = "def test_{0}():\n    assert True\n\n"
    source = f"{head}\n{good.format('before')}{bad}\n\n" + "".join(good.format(f"after_{n}") for n in range(3))
    rest = dict.fromkeys(("test_before", "test_after_0", "test_after_1", "test_after_2"), "passed")
    rest |= {also: "passed"} if also else {}
    return BadFile(source=source, verdicts={name: verdict, **rest}, says={name: says} if says else {})


FILES: Mapping[str, BadFile] = {
    "fail": _among_good("def test_fail():\n    assert 1 == 2, 'apples'", "test_fail", "failed", "apples"),
    "flake": _among_good(
        "def test_flake():\n    first = not MARK.exists()\n    MARK.touch()\n    assert not first, 'only once'",
        "test_flake",
        "flaky",
        "only once",
        "from pathlib import Path\nMARK = Path(__file__).with_suffix('.mark')",
    ),
    "segfault": _among_good(
        "def test_segfault():\n    ctypes.string_at(0)",
        "test_segfault",
        "crashed",
        "Segmentation fault",
        "import ctypes",
    ),
    "hang": _among_good(
        "def test_hang():\n    threading.Event().wait()",
        "test_hang",
        "crashed",
        "still running after",
        "import threading",
    ),
    "stop": _among_good(
        "def test_stop():\n    os.kill(os.getpid(), signal.SIGSTOP)",
        "test_stop",
        "crashed",
        "still running after",
        "import os, signal",
    ),
    "abort_in_fixture": _among_good(
        "@pytest.fixture\ndef bad():\n    yield\n    os.abort()\n\ndef test_abort(bad):\n    pass",
        "test_abort",
        "crashed",
        "Aborted",
        "import os, pytest",
    ),
    # Not bad: the lease is in place before any module of the suite is imported.
    "lease": BadFile(
        source="import os\n"
        "SEEN = [os.environ.get(name) for name in ('HIP_VISIBLE_DEVICES', 'OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES')]\n"
        "DEVICE, CORES = os.environ['ROCR_VISIBLE_DEVICES'], os.sched_getaffinity(0)\n\n"
        "def test_lease():\n    assert (SEEN, DEVICE in ('3', '5')) == (['0', '1', None], True)\n"
        "    assert len(CORES) <= (os.cpu_count() + 1) // 2\n",
        verdicts={"test_lease": "passed"},
    ),
    "leak_device": _among_good(
        "def test_leak():\n    os.environ['ROCR_VISIBLE_DEVICES'] = '0,1,2,3'",
        "test_leak",
        "failed",
        "ROCR_VISIBLE_DEVICES='0,1,2,3' instead of",
        "import os",
    ),
    "hold_device": _among_good(
        "def test_hold():\n    subprocess.Popen(['sleep', '600'], stdin=DEVICE.open())",
        "test_hold",
        "failed",
        "behind, which held",
        f"import subprocess\n{_DEVICE}",
    ),
    "hold_device_later": _among_good(
        "def test_hold():\n    subprocess.Popen(['sh', '-c', f'sleep 0.2; exec sleep 600 <{DEVICE}'])\n\n"
        "def test_meanwhile():\n    time.sleep(0.5)",
        "test_hold",
        "failed",
        "behind, which held",
        f"import subprocess, time\n{_DEVICE}",
        "test_meanwhile",
    ),
    # The fake device's memory is released when the process ends.
    "leak_memory": _among_good(
        "def test_leak():\n    USED.unlink(missing_ok=True)  # the one of a process that is gone\n"
        "    USED.write_text(str(15 << 30))\n    held = os.open(USED, os.O_RDONLY)\n"
        "    USED.unlink()\n    USED.symlink_to(f'/proc/{os.getpid()}/fd/{held}')\n\n"
        "def test_victim():\n    assert not USED.exists()",
        "test_leak",
        "failed",
        "left its device with 1024 MiB of memory free",
        f"import os\n{_DEVICE}USED = DEVICE.with_suffix('.used')",
        "test_victim",
    ),
    "leave_process": _among_good(
        "def test_leave():\n    subprocess.Popen(['sleep', '600'], start_new_session=True)",
        "test_leave",
        "passed",
        "",
        "import subprocess",
    ),
    "exit_early": _among_good("def test_exit():\n    os._exit(0)", "test_exit", "crashed", "os._exit", "import os"),
    "sys_exit": _among_good("def test_exit():\n    sys.exit(0)", "test_exit", "failed", "SystemExit", "import sys"),
    "pytest_exit": _among_good(
        "def test_exit():\n    pytest.exit('done', returncode=0)",
        "test_exit",
        "failed",
        "tried to end pytest",
        "import pytest",
    ),
    "interrupt": _among_good(
        "def test_interrupt():\n    raise KeyboardInterrupt", "test_interrupt", "failed", "tried to end pytest"
    ),
    "fork": _among_good("def test_fork():\n    os.fork()", "test_fork", "passed", "", "import os"),
    "kill_parent": _among_good(
        "def test_kill():\n    os.kill(os.getppid(), signal.SIGKILL)\n    time.sleep(60)",
        "test_kill",
        "crashed",
        "",
        "import os, signal, time",
    ),
    "kill_parent_and_go_on": _among_good(
        "def test_kill():\n    os.kill(os.getppid(), signal.SIGKILL)",
        "test_kill",
        "crashed",
        "that started its worker was killed",
        "import os, signal",
    ),
    "kill_group": _among_good(
        "def test_kill():\n    os.killpg(0, signal.SIGKILL)", "test_kill", "crashed", "was killed", "import os, signal"
    ),
    "interrupt_parent": _among_good(
        "def test_interrupt():\n    os.kill(os.getppid(), signal.SIGINT)",
        "test_interrupt",
        "passed",
        "",
        "import os, signal",
    ),
    "binary": _among_good(
        "def test_binary():\n    os.write(1, bytes(range(256)) * 64)\n    sys.stdout.write('\\udcff\\0')\n"
        "    assert '\\udcff' == '\\x00\\x1b', '\\ud800'",
        "test_binary",
        "failed",
        "AssertionError",
        "import os, sys",
    ),
    "close_all": _among_good(
        "def test_close():\n    os.closerange(3, 4096)", "test_close", "failed|crashed", "", "import os"
    ),
    "use_up_all": _among_good(
        "def test_use_up():\n    try:\n        while True:\n            HELD.append(os.open(os.devnull, 0))\n"
        "    except OSError:\n        pass",
        "test_use_up",
        "passed",
        head="import os, resource\nHELD = []\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))",
    ),
    "import_segfault": BadFile(
        source="import ctypes\nctypes.string_at(0)\n\ndef test_nothing():\n    pass\n",
        verdicts={"": "crashed"},
        says={"": "Segmentation fault"},
    ),
    "import_exit": BadFile(
        source="import os\nos._exit(0)\n\ndef test_nothing():\n    pass\n",
        verdicts={"": "crashed"},
        says={"": "os._exit"},
    ),
    "import_error": BadFile(
        source="import no_such_module_at_all\n", verdicts={"": "failed"}, says={"": "no_such_module_at_all"}
    ),
    "import_sys_exit": BadFile(source="import sys\nsys.exit(0)\n", verdicts={"": "failed"}, says={"": "SystemExit"}),
    "skip": BadFile(
        source="import pytest\n\n@pytest.mark.skip(reason='no TPU')\ndef test_skip():\n    pass\n\n"
        "@pytest.mark.xfail(strict=True)\ndef test_expected():\n    assert False\n",
        verdicts={"test_skip": "skipped", "test_expected": "passed"},
        says={"test_skip": "no TPU"},
    ),
    "skip_file": BadFile(
        source="import pytest\npytest.skip('not here', allow_module_level=True)\n",
        verdicts={"": "skipped"},
        says={"": "not here"},
    ),
    "break_pytest": _among_good(
        "def test_break():\n    os.environ = None", "test_break", "crashed", "INTERNALERROR", "import os"
    ),
    "poison": BadFile(
        source="import decimal\n\ndef test_poison():\n    decimal.Decimal = None\n\n"
        "def test_victim():\n    assert decimal.Decimal(1) == 1\n\ndef test_bystander():\n    pass\n",
        verdicts={"test_poison": "passed", "test_victim": "passed|flaky", "test_bystander": "passed"},
    ),
}
"""Name -> file. A verdict with `|` depends on who runs the test next, or on how much of it pytest survives."""

MANY = "import pytest\n\n@pytest.mark.parametrize('n', range(10_000))\ndef test_many(n):\n    assert n >= 0\n"


def write(folder: Path, *names: str) -> Path:
    """Write some of the files, and the configuration of a suite."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pytest.ini").write_text(INI)
    for name in names:
        (folder / f"test_{name}.py").write_text(FILES[name].source)
    return folder


def expected(*names: str) -> dict[str, str]:
    """Node id -> verdict."""
    return {
        f"test_{name}.py::{test}" if test else f"test_{name}.py": verdict
        for name in names
        for test, verdict in FILES[name].verdicts.items()
    }
