"""The only part that knows SimPy: requests arrive, instances step, rows are recorded."""

from kvsim.sim.run import AllRefusedError, OnProgress, run_scenario, run_to_folder

__all__ = ["AllRefusedError", "OnProgress", "run_scenario", "run_to_folder"]
