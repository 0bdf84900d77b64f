"""Scenario files: schema, loading with a position for every error, sweeps."""
