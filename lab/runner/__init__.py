"""Runs scenarios and programs: containers, barriers, faults, the run directory. Import the modules directly."""
