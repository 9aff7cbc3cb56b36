"""Evidence: a session in one signed file, and its verification on another machine."""

from pytest_llmbench.core.errors import ConfigError

try:
    import cryptography  # noqa: F401
    import in_toto_attestation  # noqa: F401
    import securesystemslib  # noqa: F401
except ImportError as error:
    raise ConfigError(
        f"signed bundles need a package that is not installed ({error.name}): pip install 'pytest-llmbench[evidence]'"
    ) from error
