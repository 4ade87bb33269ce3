"""What the package raises: one class for each kind of fault."""


class InvalidInput(ValueError):
    """An array, file or model that does not hold what is needed: one line, with the name and what was expected."""


class InvalidOption(ValueError):
    """An option, policy or budget that is unknown, out of range or meaningless."""
