"""Errors meant for people: the message is one line that says what is wrong and what would be right."""


class KvsimError(ValueError):
    """Bad input; the text alone must tell the user where it is and how to mend it."""
