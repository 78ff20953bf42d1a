"""Descriptions of entities and rules as they are kept."""

from __future__ import annotations

from sbclient.emulator.data.rows import decode_description, encode_description
from sbclient.emulator.management.atom_values import read_any, write_any
from sbclient.entities import RuleProperties, SqlRuleFilter

PARAMETERS = {
    "long": "5",
    "int": "5",
    "double": "5",
    "boolean": "true",
    "dateTime": "2026-11-23T10:00:00.1234567Z",
    "duration": "PT1H0.0000001S",
    "string": "x",
}


def test_parameters_of_a_rule_keep_their_types() -> None:
    parameters = {f"@{kind}": read_any(kind, text) for kind, text in PARAMETERS.items()}
    kept = decode_description(encode_description(RuleProperties("r", SqlRuleFilter("a = @long", parameters))))
    assert dict(write_any(value) for value in kept.filter.parameters.values()) == PARAMETERS
