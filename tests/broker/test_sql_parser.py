import pytest

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
from sbclient.errors import InvalidOperationError
from tests.fresh_process import output_of

_AFTER_NAME = "a comparison (= <> < <= > >=), IN, LIKE, IS NULL or an arithmetic operator"

A, B, C = Property("a"), Property("b"), Property("c")
ONE, TWO = Constant(1), Constant(2)
A_IS_1, B_IS_2 = Comparison("=", A, ONE), Comparison("=", B, TWO)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a = 1", A_IS_1),
        ("a=1", A_IS_1),
        ("\n a\t=\r\n1 ", A_IS_1),
        ("(((a = 1)))", A_IS_1),
        ("((a)) = (1)", A_IS_1),
        ("a != 1", Comparison("<>", A, ONE)),
        ("a <> 1", Comparison("<>", A, ONE)),
        ("a <= 1", Comparison("<=", A, ONE)),
        ("a >= 1", Comparison(">=", A, ONE)),
        ("a < 1", Comparison("<", A, ONE)),
        ("a > 1", Comparison(">", A, ONE)),
        ("a = 1 and b = 2", And((A_IS_1, B_IS_2))),
        ("a = 1 OR b = 2 AND a = 1", Or((A_IS_1, And((B_IS_2, A_IS_1))))),
        ("(a = 1 OR b = 2) AND a = 1", And((Or((A_IS_1, B_IS_2)), A_IS_1))),
        ("a = 1 OR b = 2 OR a = 1", Or((A_IS_1, B_IS_2, A_IS_1))),
        ("NOT a = 1 AND b = 2", And((Not(A_IS_1), B_IS_2))),
        ("NOT NOT a = 1", Not(Not(A_IS_1))),
        ("NOT (a = 1 AND b = 2)", Not(And((A_IS_1, B_IS_2)))),
        ("a IS NULL", IsNull(A)),
        ("sys.Label is not null", IsNull(Property("Label", True), is_negated=True)),
        ("a IN (1)", In(A, (ONE,))),
        ("a+1 NOT IN (1, b)", In(Arithmetic("+", A, ONE), (ONE, B), is_negated=True)),
        ("a LIKE 'x%'", Like(A, Constant("x%"))),
        ("a not like b escape '!'", Like(A, B, Constant("!"), is_negated=True)),
        ("a LIKE b ESCAPE c", Like(A, B, C)),
        ("EXISTS(a)", Exists(A)),
        ("exists ( user.a )", Exists(A)),
    ],
)
def test_a_predicate_is_read(text: str, tree: Node) -> None:
    assert parse_filter(text) == tree


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("0", Constant(0)),
        ("9223372036854775807", Constant(2**63 - 1)),
        ("-9223372036854775808", Constant(-(2**63))),
        ("-9223372036854775808.0", Sign("-", Constant(2.0**63))),
        ("0x1f", Constant(31)),
        ("1894.1204", Constant(1894.1204)),
        ("2.", Constant(2.0)),
        (".5", Constant(0.5)),
        ("101.5E5", Constant(10150000.0)),
        ("0.5E-2", Constant(0.005)),
        ("1e3", Constant(1000.0)),
        ("'it''s'", Constant("it's")),
        ("''", Constant("")),
        ("''''", Constant("'")),
        ("TRUE", Constant(True)),
        ("false", Constant(False)),
        ("null", Constant(None)),
        ("@Name", Parameter("name")),
        ("a", A),
        ("user.a", A),
        ("USER . a", A),
        ("sys.a", Property("a", True)),
        ("[SYS].[a b]", Property("a b", True)),
        ("user", Property("user")),
        ("sys", Property("sys")),
        ("[HR-EmployeeID]", Property("HR-EmployeeID")),
        ("[a]]b]", Property("a]b")),
        ('"Contoso & ""Northwind"""', Property('Contoso & "Northwind"')),
        ("[and]", Property("and")),
        ("android", Property("android")),
        ("in_x", Property("in_x")),
        ("ünïcode_1", Property("ünïcode_1")),
        ("p", Property("p")),
        ("set", Property("set")),
        ("newid()", NewId()),
        ("NEWID ( )", NewId()),
        ("property('x')", NamedProperty(Constant("x"))),
        ("P(a)", NamedProperty(A)),
        ("1 - 2 - a", Arithmetic("-", Arithmetic("-", ONE, TWO), A)),
        ("1 - (2 - a)", Arithmetic("-", ONE, Arithmetic("-", TWO, A))),
        ("1 + 2 * a", Arithmetic("+", ONE, Arithmetic("*", TWO, A))),
        ("1 / 2 % a", Arithmetic("%", Arithmetic("/", ONE, TWO), A)),
        ("-a * 2", Arithmetic("*", Sign("-", A), TWO)),
        ("1--2", Arithmetic("-", ONE, Sign("-", TWO))),
        ("+ - a", Sign("+", Sign("-", A))),
        ("b-a", Arithmetic("-", B, A)),
    ],
)
def test_an_expression_is_read(text: str, tree: Node) -> None:
    read = parse_filter(f"{text} = 1")
    assert isinstance(read, Comparison)
    assert read.left == tree
    if isinstance(tree, Constant):  # 1 == 1.0 == True in Python, not here
        assert isinstance(read.left, Constant)
        assert type(read.left.value) is type(tree.value)


def test_an_action_is_read_with_and_without_separators() -> None:
    tree = Statements((Assignment(A, ONE), Removal(Property("Label", True)), Assignment(Property("set"), B)))
    for text in (
        "SET a = 1; REMOVE sys.Label; SET set = b;",
        "set a=1 remove sys.Label set set = b",
        "SET a = 1, REMOVE sys.Label;, SET set = b",
    ):
        assert parse_action(text) == tree


@pytest.mark.parametrize(
    ("text", "place", "found", "expected"),
    [
        ("", "line 1, column 1", "the end", "NOT, a value or EXISTS"),
        ("a =", "line 1, column 4", "the end", "a value"),
        (
            "a",
            "line 1, column 2",
            "the end",
            _AFTER_NAME,
        ),
        ("TRUE", "line 1, column 5", "the end", "a comparison (= <> < <= > >=), IN or LIKE"),
        ("a = 1 b", "line 1, column 7", "'b'", "an arithmetic operator, AND, OR or the end"),
        ("(a = 1", "line 1, column 7", "the end", "')'"),
        ("\n  a\n =", "line 3, column 3", "the end", "a value"),
        ("a\n  AND", "line 2, column 3", "'AND'", _AFTER_NAME),
        ("a = AND", "line 1, column 5", "'AND'", "a value"),
        ("and = 1", "line 1, column 1", "'and'", "NOT, a value or EXISTS"),
        (
            "a # 1",
            "line 1, column 3",
            "'#'",
            _AFTER_NAME,
        ),
        ("a IS 1", "line 1, column 6", "'1'", "NOT or NULL"),
        ("a NOT = 1", "line 1, column 7", "'='", "IN or LIKE"),
        ("exists(1)", "line 1, column 8", "'1'", "the name of a property"),
        ("a IN ()", "line 1, column 7", "')'", "a value"),
        ("a IN (1", "line 1, column 8", "the end", "')' or ','"),
        ("a IN 1", "line 1, column 6", "'1'", "'('"),
        ("a = 1 = 2", "line 1, column 7", "'='", "AND, OR or the end"),
        ("sys. = 1", "line 1, column 6", "'='", "the name of a property"),
        (
            "(a) IS NULL",
            "line 1, column 5",
            "'IS'",
            "a comparison (= <> < <= > >=), IN, LIKE or an arithmetic operator",
        ),
        ("a LIKE 'x' ESCAPE", "line 1, column 18", "the end", "a value"),
    ],
)
def test_error_about_a_filter_names_position_found_and_expected(
    text: str, place: str, found: str, expected: str
) -> None:
    with pytest.raises(InvalidOperationError) as caught:
        parse_filter(text)
    assert str(caught.value) == f"the filter is refused at {place}: found {found}, expected {expected}"


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("a = 'x", "line 1, column 5", "the text that begins here is never closed"),
        ("a = 'it''s", "line 1, column 5", "the text that begins here is never closed"),
        ("[a = 1", "line 1, column 1", "the name that begins here is empty or never closed"),
        ("[a]]b = 1", "line 1, column 1", "the name that begins here is empty or never closed"),
        ('"a""b = 1', "line 1, column 1", "the name that begins here is empty or never closed"),
        ("[] = 1", "line 1, column 1", "the name that begins here is empty or never closed"),
        ('a = "x', "line 1, column 5", "the name that begins here is empty or never closed"),
        ("_a = 1", "line 1, column 1", "a name that begins with _ needs brackets"),
        ("a = 9223372036854775808", "line 1, column 5", "the integer 9223372036854775808 does not fit into 64 bits"),
        ("a = -(9223372036854775809)", "line 1, column 7", "the integer 9223372036854775809 does not fit into 64 bits"),
        ("a = 0x10000000000000000", "line 1, column 5", "the integer 0x10000000000000000 does not fit into 64 bits"),
        ("a = 1e999", "line 1, column 5", "the number 1e999 does not fit into a double"),
        ("a.b = 1", "line 1, column 1", "a is no scope, the scopes are sys and user; a name with a dot needs brackets"),
        (
            "b = upper(a)",
            "line 1, column 5",
            "there is no function upper, the functions are newid() and property(name) or p(name)",
        ),
        ("newid(1) = a", "line 1, column 1", "newid() takes no argument, not 1"),
        ("a = p()", "line 1, column 5", "p(name) takes one argument, not 0"),
        ("a = property(a, b)", "line 1, column 5", "property(name) takes one argument, not 2"),
    ],
)
def test_error_about_a_meaningless_filter_names_position_and_reason(text: str, place: str, reason: str) -> None:
    with pytest.raises(InvalidOperationError) as caught:
        parse_filter(text)
    assert str(caught.value) == f"the filter is refused at {place}: {reason}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SET",
        "SET a",
        "SET a = b = c",
        "a = 1",
        "SET a = 1 OR 2",
        "SET a = 1;;",
        "SET a = 1,",
        "REMOVE p('x')",
    ],
)
def test_a_bad_action_is_refused(text: str) -> None:
    with pytest.raises(InvalidOperationError, match="the action is refused at line 1, column"):
        parse_action(text)


def test_a_filter_and_an_action_have_at_most_1024_characters() -> None:
    for length in (1023, 1024):
        assert parse_filter("a = 1".ljust(length)) == A_IS_1
        assert parse_action("REMOVE a".ljust(length)) == Statements((Removal(A),))
    with pytest.raises(InvalidOperationError, match="1025 characters, 1024 are allowed"):
        parse_filter("a = 1".ljust(1025))
    with pytest.raises(InvalidOperationError, match="1025 characters, 1024 are allowed"):
        parse_action("REMOVE a".ljust(1025))


def test_an_action_has_at_most_32_statements() -> None:
    for count in (31, 32):
        assert len(parse_action("REMOVE a;" * count).statements) == count
    with pytest.raises(InvalidOperationError, match="33 statements, 32 are allowed"):
        parse_action("REMOVE a;" * 33)


@pytest.mark.parametrize(
    "text", ["NOT " * 150 + "a = 1", "-" * 900 + "a = 1", "1+" * 400 + "1 = a", "p(" * 300 + "a" + ")" * 300 + "=1"]
)
def test_a_tree_that_is_too_deep_is_refused_before_it_exhausts_the_stack(text: str) -> None:
    with pytest.raises(InvalidOperationError, match="levels deep, 100 are allowed"):
        parse_filter(text)


def test_parentheses_cost_no_depth() -> None:
    assert parse_filter("(" * 500 + "a = 1" + ")" * 500) == A_IS_1


def test_a_node_has_its_position() -> None:
    tree = parse_filter("a = 1 AND\n  sys.Label LIKE @p")
    assert isinstance(tree, And)
    like = tree.terms[1]
    assert isinstance(like, Like)
    assert isinstance(like.operand, Property)
    assert isinstance(like.pattern, Parameter)
    assert (like.operand.position, like.position, like.pattern.position) == (
        Position(2, 3),
        Position(2, 13),
        Position(2, 18),
    )


def test_the_parser_is_loaded_by_the_first_rule_in_sql_alone() -> None:
    program = (
        "import sys; from sbclient.broker import filters; from sbclient.entities import TrueRuleFilter, SqlRuleFilter; "
        "filters.compile_filter(TrueRuleFilter()); assert 'lark' not in sys.modules; "
        "filters.compile_filter(SqlRuleFilter('1=1')); assert 'lark' in sys.modules"
    )
    output_of(program)  # fails if the program fails
