"""Start-ups: two engines that must agree to the nanosecond, the article's figures, timers and orders."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.sim import article, fit, recursion, rng
from lab.sim.constants import STARTUP, TAGS, start_up
from lab.sim.plan import Gate, Phase, Plan, PlanError
from lab.sim.startup import nearest_rank, play

MS = 1_000_000

gates = st.builds(Gate, name=st.just("g"), servers=st.integers(1, 5), scope=st.sampled_from(("host", "cache", "gpu")))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Feed-forward plans: some phases, each perhaps behind a gate of its own."""
    phases, used = [], []
    joined = False
    for number in range(draw(st.integers(1, 4))):
        gate = draw(st.none() | gates)
        times = {"base_ns": draw(st.integers(0, 3_000))}
        if draw(st.booleans()):
            times["spread"] = draw(st.sampled_from((0.1, 0.5)))
        joins = False
        if gate is not None:
            gate = Gate(name=f"g{number}", servers=gate.servers, scope=gate.scope)
            used.append(gate)
            if gate.servers == 1:
                times["per_turn_ns"] = draw(st.integers(0, 50))
                joins = not joined and gate.scope == "host" and draw(st.booleans())
                if joins:
                    joined = True
                    times["per_client_ns"] = draw(st.integers(0, 50))
        phases.append(Phase(name=f"p{number}", gate=gate and gate.name, joins=joins, **times))
    return Plan(
        phases=tuple(phases),
        gates=tuple(used),
        release_ns=draw(st.sampled_from((0, 10, 5_000))),
        gpus=draw(st.integers(1, 3)),
        per_cache=draw(st.integers(0, 4)),
    )


@settings(deadline=None, max_examples=150)
@given(plan=plans(), workers=st.integers(1, 40), seed=st.integers(0, 5))
def test_engines_agree_to_the_nanosecond(plan: Plan, workers: int, seed: int) -> None:
    assert recursion.obstacle(plan) == ""
    one = play(plan, workers=workers, seed=seed, engine="events", record=True)
    two = play(plan, workers=workers, seed=seed, engine="recursion", record=True)
    assert (one.latency == two.latency).all()
    assert (one.end == two.end).all()
    for name in one.began:
        assert (one.began[name] == two.began[name]).all(), name
        assert (one.ended[name] == two.ended[name]).all(), name


@pytest.mark.parametrize("workers", [1, 2, 129, 700])
def test_engines_agree_on_the_article(workers: int) -> None:
    plan = article.plan("broker", spread=0.1, gpus=4, per_cache=50)
    one, two = (play(plan, workers=workers, engine=engine) for engine in ("events", "recursion"))
    assert (one.latency == two.latency).all()


def test_a_planted_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison would notice an engine that is a nanosecond off for one worker."""
    plan = article.plan("broker")
    honest = recursion.lanes
    monkeypatch.setattr(recursion, "lanes", lambda at, *rest: honest(at, *rest) + (at == at.max()))
    one, two = (play(plan, workers=50, engine=engine) for engine in ("events", "recursion"))
    assert (one.latency != two.latency).any()


def test_what_is_not_feed_forward_says_why() -> None:
    gate = Gate(name="g")
    phase = Phase(name="a", gate="g", base_ns=1)
    for plan, said in [
        (article.plan("probe"), "gate driver is used by two phases|holds its gate"),
        (Plan(phases=(phase, Phase(name="b", gate="g")), gates=(gate,)), "used by two phases"),
        (Plan(phases=(phase,), gates=(Gate(name="g", order="lifo"),)), "serves in lifo order"),
        (Plan(phases=(phase,), gates=(Gate(name="g", timeout_ns=1),)), "has a timeout"),
    ]:
        with pytest.raises(PlanError, match=said):
            play(plan, workers=2, engine="recursion")
        assert play(plan, workers=2).engine == "events"


def test_four_workers() -> None:
    for variant, expected in {
        "probe": [80, 130, 180, 230],
        "broker": [31] * 4,
        "registration": [43, 55, 67, 79],
    }.items():
        for engine in ("events", "recursion"):
            found = play(article.four_workers(variant), workers=4, engine=engine)
            assert sorted(found.latency.tolist()) == [ms * MS for ms in expected]


def test_nine_cells() -> None:
    """Shipped constants: within 2 % rms of the article, no cell further off than 2 %."""
    table = fit.article_table()
    errors = fit.predict(table, start_up()) / np.array(list(table.values())) - 1
    assert float(np.sqrt((errors**2).mean())) <= 0.02
    assert float(np.abs(errors).max()) <= 0.02
    timeouts = int(play(article.plan("probe"), workers=300).timeouts.sum())
    assert abs(timeouts - article.TIMEOUTS[300]) <= 10


def test_give_ups_begin_late() -> None:
    counts = {workers: int(play(article.plan("probe"), workers=workers).gave_up.sum()) for workers in (400, 500, 1000)}
    assert counts[400] == 0
    assert 10 <= counts[500] <= 100
    assert 600 <= counts[1000] <= 720


def test_registration_alone() -> None:
    c = start_up(init=0, init_per_client=0, broker=0, loader=0, private=0, after=0, release=0)
    times = {n: int(play(article.plan("broker", constants=c), workers=n).latency.max()) for n in (128, 256)}
    assert 95 * MS < times[128] < 110 * MS  # public: 92 to 108 ms
    assert 330 * MS < times[256] < 356 * MS  # public: 336 to 356 ms


def test_a_gate_gives_up_after_its_tries() -> None:
    gate = Gate(name="g", timeout_ns=10, tries=2)
    found = play(Plan(phases=(Phase(name="a", gate="g", base_ns=100),), gates=(gate,)), workers=3)
    assert found.gave_up.tolist() == [False, True, True]
    assert found.timeouts.tolist() == [0, 2, 2]
    assert found.latency.tolist() == [100, 20, 20]


@pytest.mark.parametrize(("order", "expected"), [("fifo", [0, 1, 2, 3]), ("lifo", [0, 3, 2, 1])])
def test_orders(order: str, expected: list[int]) -> None:
    plan = Plan(phases=(Phase(name="a", gate="g", base_ns=100),), gates=(Gate(name="g", order=order),))
    found = play(plan, workers=4, release=[0, 1, 2, 3], engine="events")
    assert np.argsort(found.end).tolist() == expected


def test_random_order_is_of_the_seed() -> None:
    plan = Plan(phases=(Phase(name="a", gate="g", base_ns=100),), gates=(Gate(name="g", order="random"),))
    ends = {seed: play(plan, workers=30, seed=seed).end.tolist() for seed in (1, 2)}
    assert ends[1] == play(plan, workers=30, seed=1).end.tolist()
    assert ends[1] != ends[2]


def test_draws_depend_on_nothing_else() -> None:
    assert (rng.uniform(3, "a", 10) == rng.uniform(3, "a", 1000)[:10]).all()
    assert (rng.lognormal(3, "a", 10, 0.2) == rng.lognormal(3, "a", 1000, 0.2)[:10]).all()
    assert (rng.uniform(3, "a", 10) != rng.uniform(3, "b", 10)).all()
    assert abs(rng.lognormal(1, "x", 100_000, 0.3).mean() - 1) < 0.01


def test_nearest_rank() -> None:
    values = np.arange(1, 301)[::-1]
    assert [nearest_rank(values, rank) for rank in (50, 99, 100)] == [150, 297, 300]
    with pytest.raises(PlanError):
        nearest_rank(np.array([], dtype=np.int64), 50)


def test_plans_are_checked() -> None:
    for make in (
        lambda: Plan(phases=(Phase(name="a", gate="nowhere"),)),
        lambda: Plan(phases=(Phase(name="a"), Phase(name="a"))),
        lambda: Plan(phases=(Phase(name="a", base_ns=-1),)),
        lambda: Gate(name="g", order="best"),
        lambda: Gate(name="g", servers=0),
        lambda: article.plan("guess"),
        lambda: play(article.plan(), workers=0),
        lambda: play(article.plan(), workers=2, release=[1]),
    ):
        with pytest.raises(PlanError):
            make()


def test_every_constant_is_tagged() -> None:
    assert {constant.tag for constant in STARTUP.values()} <= set(TAGS)
    assert all(constant.source for constant in STARTUP.values())
    with pytest.raises(KeyError, match="no constant 'initt'"):
        start_up(initt=3)


def test_the_package_is_light() -> None:
    """SimPy and matplotlib are extras: the feed-forward engine and the GPU world need neither."""
    program = (
        "import sys; sys.modules['simpy'] = sys.modules['matplotlib'] = None\n"
        "from lab.sim import article, startup, grade, capacity, tables\n"
        "print(startup.play(article.plan('broker'), workers=3).engine)\n"
        "try: startup.play(article.plan('probe'), workers=3)\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "recursion\nthe event engine needs SimPy: pip install 'hooklab[sim]'\n"


@pytest.mark.full
def test_fit_and_what_it_does_not_know() -> None:
    found = fit.fit()
    assert found.rms <= 2
    assert found.left_out_rms <= 3
    assert found.density_left_out_worst <= 8


@pytest.mark.full
def test_a_million_start_ups() -> None:
    begun = time.process_time()
    found = play(article.plan("broker"), workers=1_000_000)
    took = time.process_time() - begun
    assert found.latency.size == 1_000_000
    print(f"1,000,000 start-ups in {took:.1f} s of processor time")


@pytest.mark.full
def test_ten_thousand_with_timers() -> None:
    begun = time.process_time()
    found = play(article.plan("probe"), workers=10_000)
    print(f"10,000 start-ups with timers in {time.process_time() - begun:.1f} s of processor time")
    assert int(found.gave_up.sum()) > 9_000
