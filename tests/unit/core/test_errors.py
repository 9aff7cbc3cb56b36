"""What errors say to people and tell to code."""

from pytest_llmbench.core.errors import ConfigError, unknown


def test_an_unknown_name_is_answered_with_the_legal_ones_and_a_guess() -> None:
    assert unknown("key", "stpes", ["time_limit", "steps"]) == (
        "unknown key 'stpes' (did you mean 'steps'?); legal: steps, time_limit"
    )
    assert unknown("unit", "bananas", ["s", "ms"]) == "unknown unit 'bananas'; legal: ms, s"
    assert unknown("system", 7, []) == "unknown system '7'; legal: none"


def test_of_many_names_those_like_the_given_one_are_listed() -> None:
    found = unknown("recipe", "gpt7b", ["gpt7", *map(str, range(40))])
    assert found == "unknown recipe 'gpt7b' (did you mean 'gpt7'?); 41 are legal, gpt7 among them"


def test_no_terminal_obeys_a_message() -> None:
    assert str(ConfigError("key '\x1b[2J\x1b]0;owned\x07a\x00\ud800\ufffe' of \u202etxt")) == (
        r"key 'a\x00\ud800\ufffe' of \u202etxt"
    )
