"""docs/scenarios.md is what the schema says, and its example is a scenario."""

from pathlib import Path

from lab.scenario import doc, schema
from lab.scenario.crosscheck import NESTED, REFERENCES, VALUES
from lab.scenario.load import loads

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_schema_says() -> None:
    assert (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8") == doc.text(), (
        "regenerate it: python -m lab.scenario.doc > docs/scenarios.md"
    )


def test_the_example_loads() -> None:
    example = doc.text().split("```yaml\n")[1].split("```")[0]
    assert len(loads(example)) == 3


def test_every_key_of_every_form_is_described() -> None:
    for name, form in [*doc._SECTIONS, *doc._members(schema.StepItemForm), *doc._members(schema.ExpectForm)]:
        assert form.__doc__, name
        for key, field in form.model_fields.items():
            assert field.description, f"{name}.{key}"


def test_tables_beside_the_schema_name_real_steps() -> None:
    steps = {name for name, _ in doc._members(schema.StepItemForm)}
    assert {*VALUES, *REFERENCES, *NESTED} <= steps


def test_keys_are_found_through_nesting() -> None:
    path = ("containers", "t", "processes", 0, "steps", 1, "fork", "steps", 0, "alloc")
    assert {"bytes", "as", "route", "kind"} <= set(doc.keys_at(path))
    assert doc.keys_at(("containers", "t", "environment")) == []
