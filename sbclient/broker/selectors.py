"""Selectors of JMS: conditions for messages, in the language of SQL filters, with the names of JMS for headers.

Source: Jakarta Messaging 3.1, section 3.8. Its BETWEEN, and the headers that have no place in a message of the service,
are refused.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

from sbclient.broker.entry import Entry, Selector
from sbclient.broker.filters import FilterError, compile_filter
from sbclient.broker.rule import system_properties_of
from sbclient.entities import SqlRuleFilter
from sbclient.errors import InvalidOperationError

_HEADERS: Final = MappingProxyType(
    {
        "JMSMessageID": "sys.MessageId",
        "JMSCorrelationID": "sys.CorrelationId",
        "JMSType": "sys.Label",
        "JMSXGroupID": "sys.SessionId",
    }
)
_TEXT_OR_HEADER: Final = re.compile(r"'(?:[^']|'')*'|\bJMS\w+")


def expression_of(selector: str) -> str:
    """Return a selector as the expression of an SQL filter.

    Raises:
        InvalidOperationError: it names a header that is not supported.
    """

    def replaced(found: re.Match[str]) -> str:
        text = found[0]
        if text.startswith("'"):
            return text
        if text not in _HEADERS:
            raise InvalidOperationError(f"a selector cannot use {text}: use {', '.join(_HEADERS)}, or properties")
        return _HEADERS[text]

    return _TEXT_OR_HEADER.sub(replaced, selector)


def compile_selector(selector: str) -> Selector:
    """Return a function that tells whether a selector matches a stored message.

    Raises:
        InvalidOperationError: the selector is not valid.
    """
    compiled = compile_filter(SqlRuleFilter(expression_of(selector)))

    def matches(entry: Entry) -> bool:
        try:
            return compiled.matches(entry.content, system_properties_of(entry))
        except FilterError:
            return False

    return matches
