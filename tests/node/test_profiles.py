"""GPU profiles hold together, say where every number comes from, and end up in the node file unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import resources

import pytest

from lab.node.server import NodeServer
from lab.spec.mig import MigError, parse_cuts
from lab.spec.profile import (
    EVIDENCE,
    LATENCIES,
    ProfileError,
    device_uuid,
    load_driver,
    load_profile,
    parse_profile,
    profile_names,
    uuid_text,
)

NAMES = (
    "a100-40g",
    "a100-40g-mig",
    "a100-80g",
    "a100-80g-article",
    "gb10",
    "h100-80g",
    "h200-141g",
    "h200-141g-mig",
    "rtx4090-24g",
    "t4-16g",
)


def source(name: str) -> str:
    return (resources.files("lab.spec") / "profiles" / f"{name}.toml").read_text()


def test_the_shipped_profiles() -> None:
    assert tuple(profile_names()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_holds_together(name: str) -> None:
    profile = load_profile(name)
    assert profile.profile == name
    assert all(constant.evidence in EVIDENCE and constant.source for constant in profile.constants.values())
    assert profile.cuda_total_bytes + profile.nvml_reserved_bytes == profile.nvml_total_bytes
    assert profile.number("compute.sm_count") * profile.number("compute.cores_per_sm") > 0
    assert set(profile.latencies) == set(LATENCIES)
    assert profile.number("compute.idle_clock_khz") < profile.number("compute.clock_khz")


def test_only_the_measured_card_claims_measurements() -> None:
    """One real card was measured: no other profile may say so."""
    for name in NAMES:
        measured = {key for key, value in load_profile(name).constants.items() if value.evidence == "measured"}
        assert bool(measured) == name.startswith("h200-141g")


def test_measured_values() -> None:
    profile = load_profile("h200-141g")
    assert (profile.cuda_total_bytes, profile.nvml_total_bytes) == (150109880320, 150754820096)
    assert profile.context_bytes == 150109880320 - 149557477376
    assert profile.context_bytes + profile.number("memory.nvml_context_extra") == 518 << 20


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sm_count = ", "sm_number = ", "p.toml: missing key compute.sm_count"),
        ("[bus]", "[bus]\nspeed = 1", "p.toml: unknown key bus.speed"),
        ("[bus]", "[tram]", "p.toml: unknown key 'tram'"),
        ("value = 40, evidence", "value = 40.5, evidence", "compute.sm_count: value must be int, is 40.5"),
        ("value = 40, evidence", "value = true, evidence", "compute.sm_count: value must be int, is True"),
        ('value = 40, evidence = "public"', 'value = 40, evidence = "hearsay"', "evidence 'hearsay' is none of"),
        ('value = 40, evidence = "public"', "value = 40", "must be {value, evidence, source}"),
        ("value = 15_637_086_208", "value = 25_637_086_208", "not above memory.nvml_total_bytes"),
        ("[bus]", "[bus", "p.toml: not TOML:"),
    ],
)
def test_a_broken_profile_is_named(old: str, new: str, message: str) -> None:
    text = source("t4-16g")
    assert old in text
    with pytest.raises(ProfileError) as caught:
        parse_profile(text.replace(old, new, 1), source="p.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_profile_with_a_base_is_it_but_for_what_it_says() -> None:
    base, profile = load_profile("a100-80g"), load_profile("a100-80g-article")
    differing = {key for key, value in profile.constants.items() if value != base.constants[key]}
    assert differing == {
        f"latency_ns.{name}"
        for name in ("init", "init_crowd", "context_create", "context_destroy", "context_client", "nvml_query")
    }
    assert (profile.kinds, profile.cuts) == (base.kinds, base.cuts)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("init = ", "start = ", "p.toml: unknown key latency_ns.start"),
        ("[latency_ns]", "[speed]", "p.toml: unknown key 'speed' of a profile with a base"),
        ('base = "a100-80g"', 'base = "a100"', "no GPU profile 'a100'; known: "),
        ('evidence = "public"', 'evidence = "hearsay"', "evidence 'hearsay' is none of"),
    ],
)
def test_a_broken_profile_with_a_base_is_named(old: str, new: str, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile(source("a100-80g-article").replace(old, new, 1), source="p.toml")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["a100", "../drivers", ""])
def test_an_unknown_profile_names_the_known(name: str) -> None:
    with pytest.raises(ProfileError, match="known: a100-40g, a100-40g-mig, a100-80g"):
        load_profile(name)


def test_drivers() -> None:
    assert (load_driver("580").cuda, load_driver("580").driver) == (13000, "580.159.04")
    assert load_driver("550").cuda < load_driver("570").cuda
    with pytest.raises(ProfileError, match="no driver generation '999'; known: 535"):
        load_driver("999")


def test_uuids_are_the_same_everywhere() -> None:
    assert uuid_text(device_uuid(0, 0)) == "GPU-ae262923-2cc2-4ee1-b3a1-7fa0464660e2"
    assert len({device_uuid(seed, index) for seed in range(20) for index in range(16)}) == 320


def test_the_node_file_carries_the_profile(make_node: Callable[..., NodeServer]) -> None:
    node = make_node(gpus=["t4-16g", "h200-141g"], latencies="profile", time_scale=0.5, driver="550", seed=3)
    header = node.file.header
    assert (int(header["driver_version"]), int(header["time_scale_ppm"])) == (12040, 500_000)
    for record, name in zip(node.file.devices, ("t4-16g", "h200-141g"), strict=True):
        profile = load_profile(name)
        assert record["name"].decode() == profile.name
        assert record["total_bytes"] == profile.cuda_total_bytes
        assert record["context_bytes"] == profile.context_bytes
        assert record["nvml_context_extra"] == profile.number("memory.nvml_context_extra")
        assert record["latency_ns"][: len(LATENCIES)].tolist() == list(profile.latencies.values())
        assert record["sm_count"] == profile.number("compute.sm_count")
    assert make_node(context_bytes=7 << 20).file.devices[0]["context_bytes"] == 7 << 20


CUTTABLE = ("a100-40g", "a100-80g", "h100-80g", "h200-141g")


@pytest.mark.parametrize("name", CUTTABLE)
def test_kinds_of_instances_fit_their_card(name: str) -> None:
    """As many as are said fit by their places, and together they take no more than the card has."""
    profile = load_profile(name)
    for kind in profile.kinds:
        assert kind.evidence in EVIDENCE
        assert kind.source
        every = [f"{kind.name}@{start}" for start in kind.starts[: kind.count]]
        assert len(parse_cuts(profile.kinds, every)) == kind.count
        assert kind.count * kind.sm_count <= profile.number("compute.sm_count")
        assert kind.count * kind.memory_bytes <= profile.nvml_total_bytes
        assert kind.name.startswith(f"{kind.slices}g.")


def test_a_cut_has_the_ids_of_the_published_listing() -> None:
    """The listing of the MIG user guide: 3g.20gb is instance 2 at 4:4, 2g.10gb 3 at 0:2, 1g.5gb 9 at 2:1."""
    cuts = load_profile("a100-40g-mig").cuts
    assert cuts is not None
    assert [(cut.index, cut.kind.name, cut.gpu_instance, cut.start) for cut in cuts] == [
        (0, "3g.20gb", 2, 4),
        (1, "2g.10gb", 3, 0),
        (2, "1g.5gb", 9, 2),
    ]
    assert load_profile("a100-40g").cuts is None


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        (["5g.30gb@0"], "cut '5g.30gb@0': no such kind of instance; known: 1g.5gb"),
        (["3g.20gb@1"], "cut '3g.20gb@1': 3g.20gb begins at memory slice 0, 4"),
        (["3g.20gb"], "cut '3g.20gb': 3g.20gb begins at memory slice 0, 4"),
        (["4g.20gb@0", "1g.5gb@3"], "cut '1g.5gb@3': memory slice 3 is taken by '4g.20gb@0'"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(cuts: list[str], message: str) -> None:
    with pytest.raises(MigError, match="^" + re.escape(message)):
        parse_cuts(load_profile("a100-40g").kinds, cuts)


def test_a_profile_with_a_base_is_checked() -> None:
    text = 'profile = "x"\ndoc = ""\nbase = "t4-16g"\ncut = []\n'
    with pytest.raises(ProfileError, match="x: t4-16g cannot be cut"):
        parse_profile(text, source="x")
    with pytest.raises(ProfileError, match="x: a profile with a base says what is different"):
        parse_profile('profile = "x"\ndoc = ""\nbase = "a100-40g"\n', source="x")
    with pytest.raises(ProfileError, match=r"x: gpu_instance 1g\.5gb: missing key copy_engines"):
        parse_profile(source("a100-40g").replace("copy_engines = 1\n", "", 1), source="x")
