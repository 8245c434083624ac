"""JSON of anybody: what can't be meant is one worded ValueError."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.json_text import MOST_DEPTH, read_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_what_json_writes_is_read(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert read_json(text) == value
        assert read_json(text.encode()) == value


HOSTILE = {
    "deep": ("[" * 100_000, "nested deeper than 64"),
    "just too deep": ("[" * (MOST_DEPTH + 2) + "]" * (MOST_DEPTH + 2), "nested deeper than 64"),
    "deep objects": ('{"a":' * 300 + "1" + "}" * 300, "nested deeper than 64"),
    "five thousand digits": ("[" + "7" * 5000 + "]", "more than 64 digits"),
    "a hundred digits": ("-" + "7" * 100, "more than 64 digits"),
    "infinite": ("[1e400]", "not finite"),
    "minus infinity": ("-Infinity", "-Infinity, which is not finite"),
    "no number": ('{"a": [NaN]}', "NaN, which is not finite"),
    "half a character": (r'["a\ud800b"]', r"the text 'a\\ud800b' has half a character"),
    "half a character as a key": (r'{"\udfff": 1}', "half a character"),
    "half a character in bytes": (b'["\xed\xa0\x80"]', "not UTF-8"),
    "not UTF-8": (b'"\xff"', "not UTF-8"),
    "cut off": ('{"a": 1', "it is not JSON: Expecting"),
    "empty": ("", "it is not JSON"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_text_is_one_line(case: str) -> None:
    text, words = HOSTILE[case]
    with pytest.raises(ValueError, match=words) as caught:
        read_json(text)
    assert "\n" not in str(caught.value)


def test_as_deep_as_allowed() -> None:
    read_json("[" * MOST_DEPTH + "]" * MOST_DEPTH)


def test_too_much_text_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="it has 11 bytes of JSON, above the limit 10"):
        read_json("[0, 0, 0, 0]"[:11], most_bytes=10)
