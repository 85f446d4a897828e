"""Loading of code objects by several threads."""

from __future__ import annotations

import threading

import pytest

from kernels.tests.support.fake import golden
from kernels.tests.support.fake.bwd_calls import BwdCase
from kernels.tests.support.fake.calls import LAUNCH, LOAD, FakeMachine, Library
from kernels.tests.support.fake.gemm_calls import Call, bf16_call
from kernels.tests.support.fake.trees import GPUS, KernelTree, find_device

pytestmark = pytest.mark.network


SPLIT: dict[str, object] = {"splitk": 0, "kernel": ""}


MI300, MI308, MI350, OTHER_MI350, NAVI = (
    find_device(*place) for place in [("gfx942", 304), ("gfx942", 80), ("gfx950", 256), ("gfx950", 32), ("gfx1100", 48)]
)
AT_ONCE: dict[str, tuple[str, tuple[int, int], list[Call], dict[str, object]]] = {
    "gemm_bf16": ("JaxAiterGemmBf16", (MI300, MI350), [
        bf16_call(m, n, 1024) for m in (16, 48, 64, 96, 4096) for n in (64, 640, 8192)], SPLIT),
    "mha_bwd_asm": ("JaxAiterMhaBwdAsm", (MI308, MI350), [
        BwdCase(depth=depth, queries=300).tensors() for depth in (64, 128, 192)], BwdCase().attributes()),
}  # fmt: skip


@pytest.mark.parametrize("module", AT_ONCE)
def test_eight_threads_on_two_devices_load_each_object_once(
    kernel_tree: KernelTree, fake_machine: FakeMachine, module: str
) -> None:
    symbol, devices, calls, attributes = AT_ONCE[module]
    library: Library = kernel_tree.fresh(module)
    fake_machine.records()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for at, (args, results) in enumerate(calls * 4):
                device = devices[(at + number) % 2]
                fake_machine.call(library, symbol, args, results, attributes, device=device)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    records = fake_machine.records()
    launches = [record for record in records if record.what == LAUNCH]
    loads = [(record.device, record.sha256) for record in records if record.what == LOAD]
    assert len(launches) == 8 * 4 * len(calls)
    assert len(set(loads)) == len(loads), "an object was loaded twice on a device"
    assert {(launch.device, launch.sha256) for launch in launches} == set(loads)
    for device in devices:
        (processor,) = (gpu.processor for gpu in GPUS if gpu.ordinal == device)
        own = {golden.digest(path) for path in (kernel_tree.hsa / processor).rglob(f"{module}/*.co")}
        used = {sha256 for at, sha256 in loads if at == device}
        assert used
        assert used <= own
    assert {record.capture_mode for record in records if record.what == LOAD} == {2}, "loaded under stream capture"
    assert {record.capture_mode for record in launches} == {1}, "the thread's capture mode was not restored"
