"""A world in virtual time: the start-up of many processes, and GPUs shared under the policies of `lab.policy`.

All times are integer nanoseconds, all randomness comes from `rng` (counter-based, keyed by seed, worker and phase), so
equal arguments give equal arrays on every machine. Every number that comes out of here is of evidence class
`simulated`; where a constant comes from is said by its tag (`constants`).

* `plan`, `startup`: what a start-up consists of, and the one call that plays it
* `events`: the event engine (needs the extra ``sim``); `recursion`: the same for feed-forward plans, vectorised
* `article`, `fit`, `capacity`: the article's table, its fit, and what a node can hold
* `gpu`, `gate`, `patterns`, `world`: GPUs, launch paths, programs; `grade`: controllers against each other
* `plots`, `tables`: figures (extra ``sim``) and CSV
"""

EVIDENCE = "simulated"
