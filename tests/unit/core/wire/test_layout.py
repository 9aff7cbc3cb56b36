"""Names of sessions."""

import re
import time

from pytest_llmbench.core.wire import layout


def test_sessions_sort_by_their_beginning() -> None:
    ids = []
    for _ in range(50):
        ids.append(layout.new_id())
        time.sleep(0.001)
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", each) for each in ids)
    assert len({each[-3:] for each in ids}) > 1
