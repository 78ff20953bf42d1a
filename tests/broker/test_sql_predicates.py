from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.broker.sql.binding import Binding
from sbclient.broker.sql.parser import parse_filter
from sbclient.broker.sql.predicates import predicate
from sbclient.broker.sql.properties import Scope, SystemProperties
from sbclient.broker.sql.values import FilterError, Steps, Truth
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage, ServiceBusMessageState

NOON = datetime(2024, 1, 2, 12, tzinfo=UTC)
ID = UUID(int=5)
PROPERTIES = {
    "one": 1,
    "two": 2.0,
    "exact": Decimal("1.5"),
    "text": "abc",
    "percent": "a%",
    "yes": True,
    "no": False,
    "nothing": None,
    "noon": NOON,
    "id": ID,
    "my.dotted": 7,
    "Mixed": "m",
    "name": "one",
    "sysname": "sys.Label",
    "badname": "sys.Colour",
}
MESSAGE = ServiceBusMessage(
    b"",
    application_properties=PROPERTIES,
    subject="label",
    message_id="m-1",
    time_to_live=timedelta(minutes=5),
    scheduled_enqueue_time_utc=NOON,
)
SYSTEM = SystemProperties(sequence_number=2**60, enqueued_time_utc=NOON, state=ServiceBusMessageState.SCHEDULED)
T, F, U = True, False, None
TRUTH = {T: "1 = 1", F: "1 = 0", U: "missing = 1"}


def truth_of(text: str, parameters: dict[str, Any] | None = None, random: Random | None = None) -> Truth:
    test = predicate(parse_filter(text), Binding("filter", parameters))
    return test(Scope(MESSAGE.application_properties, MESSAGE, SYSTEM, random, Steps()))


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("one = 1", T),
        ("one = 2", F),
        ("one = 1.0", T),
        ("1 = one", T),
        ("one < two", T),
        ("one + 1 = two", T),
        ("two / 4 = 0.5", T),
        ("one / 4 = 0", T),
        ("-one = -1", T),
        ("one = +1", T),
        ("-(one + one) = -2", T),
        ("one - -one = 2", T),
        ("exact = 1.5", T),
        ("exact * 2 = 3", T),
        ("text = 'abc'", T),
        ("text = 'ABC'", F),
        ("text < 'abd'", T),
        ("text + 'd' = 'abcd'", T),
        ("text + one = 'abc1'", T),
        ("yes = TRUE", T),
        ("yes <> no", T),
        ("id = id", T),
        ("noon = sys.EnqueuedTimeUtc", T),
        ("0x10 = 16", T),
        ("one = 9223372036854775807", F),
        ("-9223372036854775808 < one", T),
    ],
)
def test_comparison_and_arithmetic(text: str, truth: Truth) -> None:
    assert truth_of(text) is truth


@pytest.mark.parametrize(
    "text",
    [
        "missing = 1",
        "missing <> 1",
        "1 < missing",
        "missing = missing",
        "nothing = 1",
        "nothing = NULL",
        "one = NULL",
        "NULL = NULL",
        "missing + 1 = 2",
        "1 + missing = 2",
        "-missing = 1",
        "-NULL = 1",
        "missing LIKE 'a'",
        "missing NOT LIKE 'a'",
        "text LIKE missing",
        "text LIKE NULL",
        "text LIKE 'a' ESCAPE NULL",
        "text LIKE 'a' ESCAPE missing",
        "missing IN (1, 2)",
        "missing NOT IN (1, 2)",
        "one IN (2, missing)",
        "one NOT IN (2, NULL)",
        "p(missing) = 1",
        "p(NULL) = 1",
        "p('missing') = 1",
        "p('sys.') = 1",
        "p('user.') = 1",
        "sys.CorrelationId = 'a'",
        "sys.ExpiresAtUtc > sys.EnqueuedTimeUtc",
        "NOT missing = 1",
    ],
)
def test_expression_with_a_missing_or_null_value_is_unknown(text: str) -> None:
    assert truth_of(text) is U


@pytest.mark.parametrize(("left", "right"), list(product((T, F, U), repeat=2)))
def test_and_or_not_are_three_valued(left: Truth, right: Truth) -> None:
    both = F if F in (left, right) else U if U in (left, right) else T
    either = T if T in (left, right) else U if U in (left, right) else F
    assert truth_of(f"{TRUTH[left]} AND {TRUTH[right]}") is both
    assert truth_of(f"{TRUTH[left]} OR {TRUTH[right]}") is either
    assert truth_of(f"NOT {TRUTH[left]}") is (None if left is None else not left)


predicates = st.recursive(
    st.sampled_from(list(TRUTH.values())),
    lambda inner: st.one_of(
        inner.map("NOT ({})".format),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda parts: "({}) {} ({})".format(*parts)),
    ),
    max_leaves=8,
)


@given(predicates, predicates, predicates)
def test_the_laws_of_three_valued_algebra_hold(a: str, b: str, c: str) -> None:
    def same(one: str, other: str) -> bool:
        return truth_of(one) is truth_of(other)

    assert same(f"NOT NOT ({a})", a)
    assert same(f"NOT (({a}) AND ({b}))", f"NOT ({a}) OR NOT ({b})")
    assert same(f"NOT (({a}) OR ({b}))", f"NOT ({a}) AND NOT ({b})")
    assert same(f"({a}) AND ({b})", f"({b}) AND ({a})")
    assert same(f"({a}) OR ({b})", f"({b}) OR ({a})")
    assert same(f"({a}) AND (({b}) OR ({c}))", f"({a}) AND ({b}) OR ({a}) AND ({c})")
    assert same(f"({a}) AND ({a})", a)


def test_a_term_behind_the_deciding_one_is_never_evaluated() -> None:
    assert truth_of("1 = 0 AND 1 / 0 = 1") is F
    assert truth_of("1 = 1 OR 1 / 0 = 1") is T
    for text in ("1 = 1 AND 1 / 0 = 1", "1 = 0 OR 1 / 0 = 1", "missing = 1 AND 1 / 0 = 1"):
        with pytest.raises(FilterError):
            truth_of(text)


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("text LIKE 'a%'", T),
        ("text NOT LIKE 'a%'", F),
        ("text LIKE 'A%'", F),
        ("text LIKE percent", T),
        ("text LIKE 'a' + '%'", T),
        ("percent LIKE 'a!%' ESCAPE '!'", T),
        ("text LIKE 'a!%' ESCAPE '!'", F),
        ("text LIKE @pattern", T),
        ("percent LIKE 'a\\%' ESCAPE '\\'", T),
        ("text IN ('abc', 'x')", T),
        ("text NOT IN ('abc', 'x')", F),
        ("text IN ('x')", F),
        ("text NOT IN ('x', 'y')", T),
        ("one IN (3, 1)", T),
        ("two IN (3, 2)", T),
        ("two NOT IN (3, 4)", T),
        ("one IN (two, 1.0)", T),
        ("one IN (2, missing, 1)", T),
        ("one NOT IN (2, missing, 1)", F),
        ("yes IN (TRUE)", T),
        ("one IN (two)", F),
        ("nothing IS NULL", T),
        ("missing IS NULL", T),
        ("one IS NULL", F),
        ("nothing IS NOT NULL", F),
        ("one IS NOT NULL", T),
        ("sys.CorrelationId IS NULL", T),
        ("sys.Label IS NOT NULL", T),
        ("EXISTS(one)", T),
        ("EXISTS(nothing)", T),
        ("EXISTS(ONE)", T),
        ("EXISTS(missing)", F),
        ("EXISTS(sys.CorrelationId)", T),
    ],
)
def test_like_in_is_null_and_exists(text: str, truth: Truth) -> None:
    assert truth_of(text, {"pattern": "_bc"}) is truth


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("mixed = 'm'", T),
        ("MIXED = 'm'", T),
        ("user.Mixed = 'm'", T),
        ("[my.dotted] = 7", T),
        ('"my.dotted" = 7', T),
        ("p('my.dotted') = 7", T),
        ("p('user.my.dotted') = 7", T),
        ("property('ONE') = 1", T),
        ("p(name) = 1", T),
        ("p('na' + 'me') = 'one'", T),
        ("p('sys.label') = 'label'", T),
        ("p(sysname) = 'label'", T),
        ("sys.label = 'label'", T),
        ("SYS.Subject = 'label'", T),
        ("sys.MessageId LIKE 'm-%'", T),
        ("sys.TimeToLive = @life", T),
        ("sys.TimeToLive + sys.TimeToLive > @life", T),
        ("-sys.TimeToLive < @life", T),
        ("sys.SequenceNumber = 1152921504606846976", T),
        ("sys.State = 2", T),
        ("sys.DeliveryCount = 0", T),
        ("sys.ForcePersistence = FALSE", T),
        ("noon < @later", T),
        ("@later - noon <= @hour", T),
        ("id = @ID", T),
        ("-@one = -1", T),
        ("sys.ScheduledEnqueueTime = sys.ScheduledEnqueueTimeUtc", T),
    ],
)
def test_scopes_functions_and_parameters(text: str, truth: Truth) -> None:
    parameters = {
        "@life": timedelta(minutes=5),
        "later": NOON.replace(hour=13, tzinfo=None),
        "@Hour": timedelta(hours=1),
        "id": ID,
        "one": 1,
    }
    assert truth_of(text, parameters) is truth


def test_exact_name_wins_over_a_name_that_differs_in_case() -> None:
    test = predicate(parse_filter("Color = 2"), Binding("filter"))
    properties: dict[str, Any] = {"COLOR": 1, "Color": 2}
    assert test(Scope(properties, MESSAGE, SYSTEM, None, Steps())) is True


def test_newid_is_a_new_guid_each_time() -> None:
    assert truth_of("newid() <> newid()", random=Random(1)) is T
    assert truth_of("newid() = @id", {"id": UUID(int=Random(1).getrandbits(128), version=4)}, Random(1)) is T


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("text = 1", "text = 1: text cannot be compared with an integer"),
        ("text > missing + 1 OR text > one", "text > one: text cannot be compared with an integer"),
        ("yes > no", "yes > no: a boolean has no order, only = and <> apply"),
        ("yes < TRUE", "yes < TRUE: a boolean has no order, only = and <> apply"),
        ("one IN ('1')", r"one IN \('1'\): an integer cannot be compared with text"),
        ("one LIKE '1'", "one LIKE '1': LIKE applies to text, not to an integer"),
        ("text LIKE one", "text LIKE one: the pattern and the escape of LIKE are text, not an integer"),
        ("text LIKE 'a' ESCAPE one", "are text, not an integer"),
        ("text LIKE text ESCAPE 'c'", "ends with its escape character"),
        ("text LIKE text ESCAPE text", "exactly one character, not 3"),
        ("one / 0 = 1", "one / 0: division by zero"),
        ("9223372036854775807 + one = 1", "cannot be held by an integer"),
        ("-text = 1", "-text: the sign - does not apply to text"),
        ("-'a' = 1", "-'a': the sign - does not apply to text"),
        ("text LIKE -'a'", "-'a': the sign - does not apply to text"),
        ("p(one) = 1", r"property\(one\): the name of a property is text, not an integer"),
        ("p(badname) = 1", r"property\(badname\): there is no system property of that name"),
        ("newid() = 1", r"newid\(\) needs a random generator"),
    ],
)
def test_filter_error_names_the_part_that_cannot_be_evaluated(text: str, reason: str) -> None:
    with pytest.raises(FilterError, match=reason):
        truth_of(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sys.Colour = 1", "line 1, column 1: there is no system property sys.Colour, there are: ContentType, "),
        ("1=1 OR EXISTS(sys.Colour)", "line 1, column 15: there is no system property"),
        ("sys.Colour IS NULL", "line 1, column 1: there is no system property"),
        ("1 = p('sys.Colour')", "line 1, column 5: there is no system property"),
        ("1 = p(1)", "line 1, column 5: the name of a property is text, not an integer"),
        ("a = @x", "line 1, column 5: the parameter @x has no value, given are: @one, @two"),
        ("a LIKE 1", "line 1, column 3: a LIKE 1: the pattern and the escape of LIKE are text, not an integer"),
        ("a LIKE 'x!' ESCAPE '!'", "line 1, column 3: .* ends with its escape character"),
        ("a LIKE 'x' ESCAPE '!!'", "line 1, column 3: .* exactly one character, not 2"),
        ("a LIKE @one", "line 1, column 3: a LIKE @one: the pattern and the escape of LIKE are text, not an integer"),
    ],
)
def test_filter_that_can_never_be_evaluated_is_rejected_at_creation(text: str, reason: str) -> None:
    with pytest.raises(InvalidOperationError, match=f"^the filter is refused at {reason}"):
        predicate(parse_filter(text), Binding("filter", {"one": 1, "@two": 2}))


def test_a_missing_parameter_is_refused_where_none_is_given() -> None:
    with pytest.raises(InvalidOperationError, match="the parameter @x has no value, given are: none"):
        predicate(parse_filter("a = @x"), Binding("filter"))


@pytest.mark.parametrize("parameters", [{"@a": 1, "A": 2}, {"a": [1]}, {"a": b"x"}, {"a": 2**63}])
def test_parameters_that_mean_nothing_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidOperationError, match="@a"):
        Binding("filter", parameters)


def test_looking_for_a_property_among_too_many_others_is_an_error() -> None:
    properties: dict[str, Any] = {f"p{number}": 1 for number in range(30_000)}
    test = predicate(parse_filter("a = 1 OR b = 1 OR c = 1 OR d = 1"), Binding("filter", {}))
    with pytest.raises(FilterError, match="100000 steps"):
        test(Scope(properties, MESSAGE, SYSTEM, None, Steps()))
