"""One folder per engine, each registered in pyproject.toml. The parts that engines share are next to the folders."""
