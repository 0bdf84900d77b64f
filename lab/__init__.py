"""hooklab: an interposition simulator and policy test lab for GPU sharing."""

__version__ = "0.1.0"
