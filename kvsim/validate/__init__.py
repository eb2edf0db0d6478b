"""Measurements of whole engines against what kvsim predicts for the same configuration and load."""
