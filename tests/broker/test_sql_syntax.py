from hypothesis import given
from hypothesis import strategies as st

from sbclient.broker.sql.parser import parse_action, parse_filter
from sbclient.broker.sql.syntax import (
    And,
    Arithmetic,
    Assignment,
    Comparison,
    Constant,
    Exists,
    In,
    IsNull,
    Like,
    NamedProperty,
    NewId,
    Node,
    Not,
    Or,
    Parameter,
    Position,
    Property,
    Removal,
    Sign,
    Statements,
)

names = st.text("abcAND_ ]\"'.é1", min_size=1, max_size=4) | st.sampled_from(["and", "Like", "user", "sys", "p", "SET"])
properties = st.builds(Property, names, st.booleans())
constants = st.builds(
    Constant,
    st.integers(0, 2**63 - 1)
    | st.just(-(2**63))
    | st.floats(0, allow_nan=False, allow_infinity=False).map(abs)
    | st.text("ab'%\n\"]é", max_size=5)
    | st.booleans()
    | st.none(),
)
leaves = properties | constants | st.builds(Parameter, st.text("ab_1", min_size=1, max_size=3)) | st.builds(NewId)


def larger(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return (
        st.builds(Sign, st.sampled_from("+-"), inner)
        | st.builds(Arithmetic, st.sampled_from("+-*/%"), inner, inner)
        | st.builds(NamedProperty, inner)
    )


expressions = st.recursive(leaves, larger, max_leaves=5)
tests = (
    st.builds(Comparison, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), expressions, expressions)
    | st.builds(Like, expressions, expressions, st.none() | expressions, st.booleans())
    | st.builds(In, expressions, st.lists(expressions, min_size=1, max_size=3).map(tuple), st.booleans())
    | st.builds(IsNull, properties, st.booleans())
    | st.builds(Exists, properties)
)


def joined(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    terms = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.builds(Not, inner) | st.builds(And, terms) | st.builds(Or, terms)


statements = st.builds(Assignment, properties, expressions) | st.builds(Removal, properties)


def constants_of(node: Node) -> list[str]:
    own = [repr(node.value)] if isinstance(node, Constant) else []
    return own + [each for part in node.parts() for each in constants_of(part)]


@given(st.recursive(tests, joined, max_leaves=4))
def test_a_printed_filter_is_read_as_the_same_tree(tree: Node) -> None:
    if len(str(tree)) <= 1024:
        read = parse_filter(str(tree))
        assert read == tree
        assert constants_of(read) == constants_of(tree)  # 1 == 1.0 == True in Python, not here


@given(st.lists(statements, min_size=1, max_size=3).map(tuple).map(Statements))
def test_a_printed_action_is_read_as_the_same_statements(tree: Statements) -> None:
    if len(str(tree)) <= 1024:
        assert parse_action(str(tree)) == tree


def test_parentheses_are_written_only_where_needed() -> None:
    for text in (
        "(a = 1 OR b = 2) AND NOT (c = 3 AND d = 4) AND NOT e = 5",
        "a + b * c - (d - e) = -(a + b) / (c * d)",
        "a = 1 OR b = 2 AND c = 3",
        "a NOT IN (1, b + 1) OR a NOT LIKE 'x' ESCAPE '!' OR sys.[a b] IS NOT NULL",
    ):
        assert str(parse_filter(text)) == text


def test_a_position_does_not_count_when_trees_are_compared() -> None:
    assert Property("a", position=Position(3, 4)) == Property("a")
    assert Property("a") != Property("A")
    assert Property("a") != Property("a", is_system=True)
