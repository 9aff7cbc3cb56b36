"""One folder per engine, each registered in pyproject.toml. What all engines share lies beside the folders."""
