"""Loading of code objects by several threads."""

from __future__ import annotations

import itertools
import threading

import pytest

from kernels.tests.support.fake import golden
from kernels.tests.support.fake.calls import LAUNCH, LOAD
from kernels.tests.support.fake.gemm_calls import bf16_call
from kernels.tests.support.fake.trees import GPUS, KernelTree, find_device

pytestmark = pytest.mark.network

DEVICES = find_device("gfx942", 304), find_device("gfx950", 256)


def test_eight_threads_on_two_devices_load_each_object_once(
    kernel_tree: KernelTree,
) -> None:
    sizes = itertools.product((16, 48, 64, 96, 4096), (64, 640, 8192))
    calls = [bf16_call(m, n, 1024) for m, n in sizes]
    words: dict[str, object] = {"splitk": 0, "kernel": ""}
    library = kernel_tree.fresh("gemm_bf16")
    kernel_tree.machine.records()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for at, (args, results) in enumerate(calls * 4):
                device = DEVICES[(at + number) % 2]
                kernel_tree.machine.call(
                    library,
                    library.symbol,
                    args,
                    results,
                    words,
                    device=device,
                )
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    records = kernel_tree.machine.records()
    launches = [record for record in records if record.what == LAUNCH]
    loads = [
        (record.device, record.sha256) for record in records if record.what == LOAD
    ]
    assert len(launches) == 8 * 4 * len(calls)
    assert len(set(loads)) == len(loads), "an object was loaded twice on a device"
    assert {(launch.device, launch.sha256) for launch in launches} == set(loads)
    for device in DEVICES:
        (processor,) = (gpu.processor for gpu in GPUS if gpu.ordinal == device)
        own = {
            golden.digest(path)
            for path in (kernel_tree.hsa / processor).rglob("gemm_bf16/*.co")
        }
        used = {sha256 for at, sha256 in loads if at == device}
        assert used
        assert used <= own
    assert {record.capture_mode for record in records if record.what == LOAD} == {2}, (
        "loaded under stream capture"
    )
    assert {record.capture_mode for record in launches} == {1}, (
        "the thread's capture mode was not restored"
    )
