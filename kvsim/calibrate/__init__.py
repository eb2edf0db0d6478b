"""Calibrations from tables of measured kernel times: read, fit, score (docs/cost.md)."""
