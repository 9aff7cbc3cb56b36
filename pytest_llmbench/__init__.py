"""pytest-llmbench: LLM training benchmarks as pytest tests.

Fixtures allocate Slurm nodes, trainings are parametrized test cases, thresholds are assertions,
and the JUnit report is the result a CI gate reads. The public names are few: a test compares what
`run` measured with a `Quantity`, or asks whether it lies `in` a `Reference`.
"""

from pytest_llmbench.core.quantity import Quantity

__all__ = ["Quantity", "__version__"]

__version__ = "0.1.0"
