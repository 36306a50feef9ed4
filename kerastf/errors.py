"""The exceptions a user meets. Each is also the built-in exception a Python user would catch."""


class UnknownNameError(LookupError):
    """No block, model, preset or option has that name here."""


class RegistrationError(ValueError):
    """A class cannot be registered under that kind or name."""


class ConfigError(ValueError):
    """A configuration is wrong. All of its problems stand in the one message.

    Attributes:
        problems: The problems, one string each.
    """

    def __init__(self, message: str, problems: list[str] | None = None):
        super().__init__(message)
        self.problems = problems or [message]


class PluginError(ImportError):
    """A name belongs to a plugin that is missing, broken, disabled or incompatible."""


class FileFormatError(ValueError):
    """A saved file is not what it should be: damaged, truncated, or of another format."""


class InputError(ValueError):
    """Data given to a model, tokenizer or decoder does not fit it."""
