"""Adapters that audit from inside somebody else's trainer; importing this imports none of them."""

from faudit.errors import FauditError


class MissingPackageError(FauditError, ImportError):
    """An optional package that is needed here cannot be imported.

    >>> print(MissingPackageError("lightning", extra="lightning"))
    lightning cannot be imported; install it with: pip install faudit[lightning]
    """

    def __init__(self, package: str, *, extra: str) -> None:
        super().__init__(
            f"{package} cannot be imported; install it with: pip install faudit[{extra}]"
        )


__all__ = ["MissingPackageError"]
