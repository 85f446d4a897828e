"""Expressions, conditions and files of the runner of workflows in tests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.workflow_runner import evaluated, pairs, truth

CONTEXT: dict[str, Any] = {
    "inputs": {"rows": "", "row": "head", "push": True, "jax-tests": "url"},
    "vars": {"BUCKET": "s3://b"},
    "needs": {"plan": {"result": "success", "outputs": {"count": "0", "matrix": '{"include":[{"name":"a"}]}'}}},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("a-${{ inputs.row }}-${{ vars.NONE }}", "a-head-"),
        ("${{ inputs.rows || vars.BUCKET || 'x' }}", "s3://b"),
        (
            "${{ inputs.row && format('{0}/{1}', inputs.rows || vars.BUCKET, inputs.row) || inputs.rows }}",
            "s3://b/head",
        ),
        ("${{ inputs.rows && format('{0}', vars.BUCKET) || inputs.jax-tests }}", "url"),
        ("${{ fromJSON(needs.plan.outputs.matrix) }}", {"include": [{"name": "a"}]}),
        ("${{ 'it''s' }}", "it's"),
        ("PUSH ${{ inputs.push }}", "PUSH true"),
    ],
)
def test_evaluated_replaces_expressions(text: str, value: Any) -> None:
    assert evaluated(text, CONTEXT) == value
    assert evaluated({"key": [text]}, CONTEXT) == {"key": [value]}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("needs.plan.outputs.count != '0'", False),
        ("${{ !cancelled() && needs.plan.result == 'success' }}", True),
        ("${{ !cancelled() && needs.plan.result == 'success' && needs.plan.outputs.count != '0' }}", False),
        ("inputs.rows != '' || vars.BUCKET != ''", True),
        ("vars.ATTEST == 'true'", False),
    ],
)
def test_truth_of_conditions(condition: str, *, holds: bool) -> None:
    assert truth(condition, CONTEXT) == holds


def test_pairs_reads_lines_and_blocks() -> None:
    text = "a=1\nb<<END\nx=1\ny\nEND\nc=k=v\n"
    assert dict(pairs(text)) == {"a": "1", "b": "x=1\ny", "c": "k=v"}
    with pytest.raises(AssertionError, match="not a name and a value"):
        dict(pairs("nonsense\n"))
