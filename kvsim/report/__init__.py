"""What people see of a result."""

from kvsim.report.console import print_summary

__all__ = ["print_summary"]
