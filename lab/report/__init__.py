"""How runs are shown: terminal, JSON, JUnit, comparison. Reads run directories, judges them, writes no run."""
