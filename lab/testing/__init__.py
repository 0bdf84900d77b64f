"""What users test their own parts with. `conformance`: does a policy keep the promises of `lab.policy`?

Needs Hypothesis (extra ``test``). Nothing is imported here before it is asked for.
"""
