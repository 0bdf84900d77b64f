"""Which host process is calling: the broker that answers with the caller's own PID, the procfs parser and its guard.

Nothing here is imported at package import; `metrics` needs the extra `broker`.
"""
