"""docs/identity.md lists what there is: every reason, every metric."""

from __future__ import annotations

from pathlib import Path

from lab.identity.broker import Broker
from lab.identity.metrics import BrokerCollector
from lab.identity.paths import reasons

TEXT = (Path(__file__).parents[2] / "docs" / "identity.md").read_text()


def test_every_reason() -> None:
    table = TEXT.partition("## Reasons")[2].partition("## Figures")[0]
    listed = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert listed == list(reasons().values())


def test_every_metric() -> None:
    broker = Broker(Path("/nowhere"))
    names = set()
    for family in BrokerCollector(broker).collect():
        name = family.name.removeprefix("hostpid_broker_")
        names.add(f"{name}_total" if family.type == "counter" else name)
    table = TEXT.partition("| metric |")[2].partition("\n\n")[0]
    assert {line.split("`")[1].partition("{")[0] for line in table.splitlines() if "`" in line} == names
