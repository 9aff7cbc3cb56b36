"""What errors say to people and tell to code."""

import pytest

from pytest_llmbench.core.errors import ClusterError, ConfigError, LLMBenchError, RunError, UnitError, unknown


def test_an_unknown_name_is_answered_with_the_legal_ones_and_a_guess() -> None:
    assert unknown("key", "stpes", ["time_limit", "steps"]) == (
        "unknown key 'stpes' (did you mean 'steps'?); legal: steps, time_limit"
    )
    assert unknown("unit", "bananas", ["s", "ms"]) == "unknown unit 'bananas'; legal: ms, s"
    assert unknown("system", 7, []) == "unknown system '7'; legal: none"


def test_the_kind_of_an_error_is_an_attribute() -> None:
    died = RunError("left_alone", "rank 3 died")
    assert (str(died), died.kind) == ("rank 3 died", "left_alone")


@pytest.mark.parametrize("error", [ConfigError, UnitError, ClusterError, RunError])
def test_one_except_catches_all(error: type[Exception]) -> None:
    assert issubclass(error, LLMBenchError)
    assert issubclass(UnitError, ConfigError)


def test_no_terminal_obeys_a_message() -> None:
    assert str(ConfigError("key '\x1b[2J\x1b]0;owned\x07a\x00\ud800\ufffe' of \u202etxt")) == (
        r"key 'a\x00\ud800\ufffe' of \u202etxt"
    )
