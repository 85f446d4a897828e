"""A runner of GitHub workflows: every `run:` step of every job, in order, with the files that GitHub's runner gives.

A step whose action only prepares the machine (checkout, credentials) is replaced by its effect; other actions are
skipped. Expressions are evaluated as far as the workflows of this project use them (GitHub, "Evaluate expressions").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.workflows import load, steps

SUCCESS, FAILURE, SKIPPED = "success", "failure", "skipped"
_EXPRESSION = re.compile(r"\$\{\{(.+?)\}\}")
_TOKEN = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>[A-Za-z_][\w.-]*)|(?P<sign>&&|\|\||==|!=|[!(),]|\d+))")
_SIGNS = {"&&": " and ", "||": " or ", "!": " not "}
_OUTPUTS = ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_STEP_SUMMARY")

Execute = Callable[[str, str, Mapping[str, str]], tuple[int, str]]
"""A function that runs a script of a job in the checkout with variables, and returns its exit code and output."""


@dataclass(frozen=True, kw_only=True)
class StepRun:
    """A step that ran; `files` are the contents of the runner's files after it."""

    job: str
    name: str
    code: int
    said: str
    files: Mapping[str, str]


@dataclass
class Machine:
    """A machine that runs workflows, with the settings of their repository.

    Attributes:
        execute: runs a script.
        variables: variables of the repository and its environments (`vars`).
        secrets: environment -> its secrets.
        identities: environment -> variables that the action for credentials sets.
        event: name of the event.
        skipped: names of steps that do not run.
        runs: all steps that ran.
    """

    execute: Execute
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    identities: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    event: str = "workflow_dispatch"
    skipped: Collection[str] = ()
    runs: list[StepRun] = field(default_factory=list)

    def run(self, file: Path, inputs: Mapping[str, Any], job_prefix: str = "") -> dict[str, str]:
        """Run a workflow, and return job -> result."""
        workflow = load(file)
        triggers = workflow["on"]
        declared = (triggers.get("workflow_dispatch") or {}).get("inputs", {})
        declared |= (triggers.get("workflow_call") or {}).get("inputs", {})
        assert inputs.keys() <= declared.keys()
        values = {name: body.get("default", "") for name, body in declared.items()} | dict(inputs)
        if self.event == "schedule" and not job_prefix:
            values = {}
        context: dict[str, Any] = {"inputs": values, "vars": self.variables, "needs": {}, "github": self.github()}
        context["env"] = evaluated(workflow.get("env", {}), context)
        for name, job in workflow["jobs"].items():
            known = {**context, "needs": {need: context["needs"][need] for need in _list(job.get("needs", []))}}
            failed = [need for need, body in known["needs"].items() if body["result"] != SUCCESS]
            condition = str(job.get("if", "true"))
            wanted = ("cancelled()" in condition or not failed) and truth(condition, known)
            result, outputs = self._job(f"{job_prefix}{name}", job, known, file) if wanted else (SKIPPED, {})
            context["needs"][name] = {"result": result, "outputs": outputs}
        return {name: body["result"] for name, body in context["needs"].items()}

    def github(self) -> dict[str, Any]:
        """Return the context `github`."""
        return {"event_name": self.event, "ref": "refs/heads/main", "repository_owner": "owner", "actor": "somebody"}

    def _job(self, name: str, job: Mapping[str, Any], context: Mapping[str, Any], file: Path) -> tuple[str, Any]:
        """Run a job for each combination of its matrix, and return its result and the outputs of the last one."""
        matrix = evaluated((job.get("strategy") or {}).get("matrix", {"include": [{}]}), context)
        result = SUCCESS
        outputs: dict[str, Any] = {}
        for combination in matrix["include"] if "include" in matrix else _product(matrix):
            inner = {**context, "matrix": combination}
            if "uses" in job:
                results = self.run(file.parent / Path(job["uses"]).name, evaluated(job["with"], inner), f"{name}/")
                failed = FAILURE in results.values()
            else:
                failed, outputs = self._steps(name, job, inner)
            result = FAILURE if failed else result
        return result, outputs

    def _steps(self, name: str, job: Mapping[str, Any], context: Mapping[str, Any]) -> tuple[bool, Any]:
        """Run the steps of a job; the first that fails ends it."""
        place = job.get("environment", "")
        place = place["name"] if isinstance(place, dict) else place
        known = {**context, "steps": {}, "secrets": self.secrets.get(place, {})}
        known["env"] = {**context["env"], **evaluated(job.get("env", {}), known)}
        exported: dict[str, str] = {}
        for number, step in enumerate(steps(dict(job)), 1):
            if not truth(str(step.get("if", "true")), known):
                continue
            if "configure-aws-credentials" in step.get("uses", ""):
                exported |= self.identities[place]
            if "run" not in step or step["name"] in self.skipped:
                continue
            own = {key: str(value) for key, value in evaluated(step.get("env", {}), known).items()}
            done = self._step(name, f"{number} {step['name']}", step["run"], {**known["env"], **exported, **own})
            exported |= dict(pairs(done.files["GITHUB_ENV"]))
            if "id" in step:
                known["steps"][step["id"]] = {"outputs": dict(pairs(done.files["GITHUB_OUTPUT"]))}
            if done.code:
                return True, {}
        return False, evaluated(job.get("outputs", {}), known)

    def _step(self, job: str, name: str, script: str, env: Mapping[str, str]) -> StepRun:
        given = {"CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "1", "GITHUB_EVENT_NAME": self.event}
        given |= {"GITHUB_REF": "refs/heads/main", "GITHUB_REF_PROTECTED": "true", "GITHUB_REPOSITORY": "owner/name"}
        given |= {name: f"/tmp/runner/{name}" for name in _OUTPUTS}
        given["RUNNER_TEMP"] = "/tmp/runner"
        clean = "rm -rf /tmp/runner && mkdir -p /tmp/runner && touch " + " ".join(given[name] for name in _OUTPUTS)
        assert self.execute(job, clean, {})[0] == 0
        # GitHub's runner starts a script without `shell` as `bash -e`.
        code, said = self.execute(job, script, {**given, **{key: str(value) for key, value in env.items()}})
        files = {name: self.execute(job, f"cat {given[name]}", {})[1] for name in _OUTPUTS}
        self.runs.append(StepRun(job=job, name=name, code=code, said=said, files=files))
        return self.runs[-1]


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a file such as $GITHUB_OUTPUT, with values of one or several lines."""
    lines = iter(text.splitlines())
    for line in lines:
        name, mark, end = line.partition("<<")
        if mark and "=" not in name:
            value = []
            while (row := next(lines)) != end:
                value.append(row)
            yield name, "\n".join(value)
        else:
            name, mark, value_of_line = line.partition("=")
            assert mark, f"not a name and a value: {line}"
            yield name, value_of_line


def evaluated(value: Any, context: Mapping[str, Any]) -> Any:
    """Return a value of a workflow with its expressions replaced."""
    if isinstance(value, dict):
        return {key: evaluated(item, context) for key, item in value.items()}
    if isinstance(value, list):
        return [evaluated(item, context) for item in value]
    if not isinstance(value, str):
        return value
    if (whole := _EXPRESSION.fullmatch(value)) is not None:
        return expression(whole[1], context)
    return _EXPRESSION.sub(lambda found: _text(expression(found[1], context)), value)


def truth(condition: str, context: Mapping[str, Any]) -> bool:
    """Return whether a condition holds; its `${{ }}` may be missing."""
    found = _EXPRESSION.fullmatch(condition)
    return bool(expression(found[1] if found else condition, context))


def expression(text: str, context: Mapping[str, Any]) -> Any:
    """Return the value of an expression; an unknown name is empty, as in GitHub Actions."""
    source, position = "", 0
    text = text.strip()
    while position < len(text):
        token = _TOKEN.match(text, position)
        assert token is not None, f"this runner cannot read {text!r}"
        position = token.end()
        if token["text"]:
            source += repr(token["text"][1:-1].replace("''", "'"))
        elif token["name"]:
            called = text[position : position + 1] == "("
            source += token["name"] if called else f"look({token['name']!r})"
        else:
            source += _SIGNS.get(token["sign"], token["sign"])
    names: dict[str, Any] = {
        "look": lambda name: _look(name, context), "fromJSON": json.loads, "cancelled": lambda: False,
        "format": lambda form, *values: form.format(*values),
    }  # fmt: skip
    return eval(source, {"__builtins__": {}}, names)


def _look(name: str, context: Mapping[str, Any]) -> Any:
    if name in ("true", "false"):
        return name == "true"
    value: Any = context
    for part in name.split("."):
        value = value.get(part, "") if isinstance(value, Mapping) else ""
    return value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _product(matrix: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the combinations of a matrix with one axis."""
    ((name, values),) = matrix.items()
    return [{name: value} for value in values]
