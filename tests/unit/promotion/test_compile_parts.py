"""The pure parts of the compile gate: shares of the work, blame, tables."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from core.errors import GateError, RequestError
from core.memory import available_memory
from promotion.corpus.program_catalog import CompileCorpus
from promotion.corpus.programs.declaration import Program
from promotion.gates.compile.child_run import (
    Batch,
    ChildJournal,
    ChildRun,
    ChildWatch,
    CompileStatus,
    ProcessLimits,
    Result,
    Share,
    interpret_exit,
)
from promotion.gates.compile.schedule import (
    compile_share,
    compile_shares,
    share_machine,
    shares,
)

GIB = 1 << 30


# Shares of the work


@pytest.mark.parametrize(
    ("cores", "available", "jobs", "expected"),
    [
        (16, 4 * GIB, None, (4, GIB)),
        (4, GIB // 2, None, (1, GIB)),
        (1, 100 * GIB, None, (1, 8 * GIB)),
        (2, 12 * GIB, 3, (3, 4 * GIB)),
    ],
)
def test_share_machine_divides_cores_and_memory(
    cores: int, available: int, jobs: int | None, expected: tuple[int, int]
) -> None:
    assert share_machine(cores, available, jobs) == expected


def test_available_memory_respects_control_group(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(
        "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n"
    )
    assert available_memory(tmp_path) == 4000 << 10
    group = tmp_path / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) == 4000 << 10
    (group / "memory.max").write_text("5000\n")
    assert available_memory(tmp_path) == 4000


PROGRAMS = [f"a.p{number}" for number in range(60)]


def dealt(share: Share) -> list[tuple[str, int]]:
    return [(batch.target, len(batch.programs)) for batch in share]


def test_shares_gives_each_process_programs_of_few_targets() -> None:
    programs = {
        "gfx942": PROGRAMS,
        "gfx1100": PROGRAMS[1:],
        "gfx1201": PROGRAMS,
    }
    first, second = shares(programs, 2)
    assert dealt(first) == [
        ("gfx1201", 60),
        ("gfx1100", 29),
    ], "those that take long go first"
    assert dealt(second) == [
        ("gfx1100", 30),
        ("gfx942", 60),
    ]
    for target, names in programs.items():
        given: list[str] = []
        for batch in (*first, *second):
            if batch.target == target:
                given.extend(batch.programs)
        assert sorted(given) == sorted(names)


# Blame and continuation


def sitting(*results: Result, problem: str = "") -> ChildRun:
    return ChildRun(results=results, problem=problem, seconds=1.0, peak=7)


def good(program: str) -> Result:
    return Result(program=program, fate=CompileStatus.COMPILED)


class Sits:
    """Fake processes that die of some programs."""

    def __init__(
        self, die: Callable[[str, int], bool], *, killed: bool = False
    ) -> None:
        self.die = die
        self.killed = killed
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, share: Share) -> list[ChildRun]:
        self.asked.append(tuple(chain.from_iterable(batch.programs for batch in share)))
        runs: list[ChildRun] = []
        for batch in share:
            done: list[Result] = []
            for program in batch.programs:
                if self.die(program, len(self.asked)):
                    fatal = Result(
                        program=program,
                        fate=CompileStatus.CRASHED,
                        error="SIGSEGV",
                        killed=self.killed,
                    )
                    return [*runs, sitting(*done, fatal)]
                done.append(good(program))
            runs.append(sitting(*done))
        return runs


def work(*programs: str, target: str = "gfx942") -> Share:
    return (Batch(target=target, programs=programs),)


def test_compile_share_continues_with_other_targets_after_a_crash() -> None:
    sits = Sits(lambda program, _: program in ("b", "c"))
    done = compile_share((*work("a", "b"), *work("c", "d", target="gfx950")), sits)
    first, second = done
    fates = {"a": CompileStatus.COMPILED, "b": CompileStatus.CRASHED}
    assert {r.program: r.fate for r in first.results} == fates
    fates = {"c": CompileStatus.CRASHED, "d": CompileStatus.COMPILED}
    assert {r.program: r.fate for r in second.results} == fates
    assert sits.asked == [("a", "b", "c", "d"), ("c", "d"), ("d",)]
    assert [len(batch.runs) for batch in done] == [1, 2]


def test_compile_share_gives_up_one_target_only() -> None:
    asked = []

    def run_child(share: Share) -> list[ChildRun]:
        asked.append([batch.target for batch in share])
        if share[0].target == "gfx942":
            return [sitting(problem="It does not start.")]
        return [sitting(*map(good, batch.programs)) for batch in share]

    broken, sound = compile_share((*work("a"), *work("b", target="gfx950")), run_child)
    assert asked == [["gfx942", "gfx950"]] * 4 + [["gfx950"]]
    assert [r.fate for r in broken.results] == [CompileStatus.NOT_RUN]
    assert [r.fate for r in sound.results] == [CompileStatus.COMPILED]
    assert [run.problem for run in sound.runs] == [""]


def test_compile_share_repeats_killed_program_last() -> None:
    sits = Sits(lambda program, count: program == "a" and count == 1, killed=True)
    (done,) = compile_share(work("a", "b"), sits)
    assert [r.fate for r in done.results] == [
        CompileStatus.COMPILED,
        CompileStatus.COMPILED,
    ]
    assert sits.asked == [
        ("a", "b"),
        ("b", "a"),
    ]
    always = Sits(lambda program, _: program == "a", killed=True)
    (again,) = compile_share(work("a", "b"), always)
    assert [r.fate for r in again.results] == [
        CompileStatus.CRASHED,
        CompileStatus.COMPILED,
    ]
    assert sum("a" in asked for asked in always.asked) == 2


def test_compile_shares_runs_concurrently_and_raises_errors() -> None:
    stop = threading.Event()
    sits = Sits(lambda _program, _count: False)
    done = list(compile_shares([work("a"), work("b")], sits, 2, stop))
    assert {part.batch.programs for part in done} == {("a",), ("b",)}
    assert stop.is_set()

    def broken(share: Share) -> list[ChildRun]:
        raise GateError("no such interpreter")

    with pytest.raises(GateError, match="no such interpreter"):
        list(compile_shares([work("a")], broken, 1, threading.Event()))


@pytest.mark.parametrize(
    ("returncode", "said", "done", "fate", "clause"),
    [
        (0, "", True, None, ""),
        (0, "", False, CompileStatus.CRASHED, "ended early with exit code 0"),
        (
            -signal.SIGABRT,
            "out of memory",
            False,
            CompileStatus.OUT_OF_MEMORY,
            "ran out of memory and died of SIGABRT",
        ),
        (
            -signal.SIGABRT,
            "F1120 17:03:42.5 2 hlo.h:55] Check failed: a == b \n"
            + "    @ 0x7f\n" * 900,
            False,
            CompileStatus.CRASHED,
            "died of SIGABRT: Check failed: a == b",
        ),
        (
            1,
            (
                "E1120 17:04:24.6 2 x.cc:4] goes on\nE1120 17:04:24.6 2 x.cc:4] LLVM"
                " Fatal Error in Triton: no.\n"
            ),
            False,
            CompileStatus.CRASHED,
            "ended with exit code 1: LLVM Fatal Error in Triton: no",
        ),
        (
            -signal.SIGABRT,
            "terminate called after\n  what():  too long\n",
            False,
            CompileStatus.CRASHED,
            "died of SIGABRT: too long",
        ),
    ],
)
def test_interpret_exit_returns_fate_and_clause(
    returncode: int, said: str, done: bool, fate: CompileStatus | None, clause: str
) -> None:
    assert interpret_exit(returncode, said, done=done) == (fate, clause)


def journal(
    folder: Path, *programs: str
) -> tuple[ChildJournal, list[tuple[str, CompileStatus | None]]]:
    seen: list[tuple[str, CompileStatus | None]] = []
    return (
        ChildJournal(
            folder, programs, lambda program, fate: seen.append((program, fate))
        ),
        seen,
    )


def say(folder: Path, *events: Any, end: str = "\n") -> None:
    with (folder / "results.jsonl").open("a") as file:
        file.write(
            "\n".join(e if isinstance(e, str) else json.dumps(e) for e in events) + end
        )


END = {
    "event": "end",
    "program": "a.b",
    "outcome": "compiled",
    "error": "",
    "seconds": 1,
    "code_objects": [],
}


def test_journal_waits_for_complete_lines(tmp_path: Path) -> None:
    told, seen = journal(tmp_path, "a.b")
    told.read()
    say(tmp_path, {"event": "ready"}, {"event": "start", "program": "a.b"})
    say(tmp_path, json.dumps(END)[:30], end="")
    told.read()
    assert told.ready is True
    assert told.running == "a.b"
    assert (told.done, told.garbage) == (False, "")
    say(tmp_path, json.dumps(END)[30:], {"event": "done"})
    told.read()
    assert told.done
    assert told.results["a.b"].fate is CompileStatus.COMPILED
    assert seen == [
        ("a.b", None),
        ("a.b", CompileStatus.COMPILED),
    ]


@pytest.mark.parametrize(
    "event",
    [
        "no JSON",
        "[]",
        '{"event": "party"}',
        '{"event": "start", "program": "c.d"}',
        json.dumps(END),
    ],
)
def test_journal_rejects_invalid_events(tmp_path: Path, event: str) -> None:
    told, seen = journal(tmp_path, "a.b")
    say(tmp_path, event)
    told.read()
    assert told.garbage
    assert seen == []


@pytest.mark.parametrize(
    "change",
    [
        {"program": "x.y"},
        {"outcome": "lovely"},
        {"code_objects": ["no"]},
        {"code_objects": ["/etc/passwd"]},
        {"code_objects": ["link"]},
    ],
)
def test_journal_rejects_false_end_event(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    told, _ = journal(tmp_path, "a.b", "x.y")
    say(tmp_path, {"event": "start", "program": "a.b"}, {**END, **change})
    told.read()
    assert told.garbage
    assert told.running == "a.b"
    assert not told.results


def test_watch_measures_time_of_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(
        "promotion.gates.compile.child_run.time.monotonic", lambda: clock[0]
    )
    journals = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        journals.append(journal(tmp_path / name, "a.b")[0])
    watch = ChildWatch(
        journals,
        ProcessLimits(start_seconds=50, program_seconds=10, memory=1 << 60),
        threading.Event(),
    )
    nobody = 2**22 + 1
    clock[0] = 149
    say(
        tmp_path / "first", {"event": "start", "program": "a.b"}, END, {"event": "done"}
    )
    assert watch(nobody) == ""
    assert watch.current is journals[1]
    clock[0] = 198
    assert watch(nobody) == "", (
        "the second request started when the first one was complete"
    )
    clock[0] = 200
    assert watch(nobody) == "made no progress for 50 s"
    assert watch.started == [100, 149]


# Compiled programs


CORPUS = CompileCorpus(
    programs=(
        Program("lax.dot", (), corpus="small"),
        Program("lax.sort", ()),
        Program("fft.fft", (), corpus="small"),
    ),
    specs={},
    digest="",
)


@pytest.mark.parametrize(
    ("corpus", "names", "says"),
    [
        ("tiny", (), "Unknown"),
        ("full", ("lax.dott",), "lax.dot"),
    ],
)
def test_choose_refuses_unknown_corpus_or_program(
    corpus: str, names: Sequence[str], says: str
) -> None:
    with pytest.raises(RequestError, match=says):
        CORPUS.choose(corpus, names)
