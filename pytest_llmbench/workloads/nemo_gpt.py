"""The earlier name of `pytest_llmbench.engines.nemo.ranks.gpt`, which recipes may still have in their options."""

import runpy

if __name__ == "__main__":
    runpy.run_module("pytest_llmbench.engines.nemo.ranks.gpt", run_name="__main__", alter_sys=True)
