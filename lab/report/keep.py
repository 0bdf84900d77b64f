"""Puts what was found into the run directory, beside the history that it came from."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

from lab.report.as_json import document
from lab.report.model import RunReport
from lab.scenario.load import dump
from lab.scenario.model import Scenario


def keep(report: RunReport) -> RunReport:
    """Writes ``verdicts.json``, and a policy of the user's own so that the run can be repeated anywhere."""
    if report.directory is not None:
        _keep_policy(report.scenario, report.directory)
        fresh = report.directory / "verdicts.json.new"
        fresh.write_text(json.dumps(document([report]), indent=1) + "\n", encoding="utf-8")
        os.replace(fresh, report.directory / "verdicts.json")
    return report


def _keep_policy(scenario: Scenario, directory: Path) -> None:
    file, _, name = (scenario.options.policy or "").rpartition(":")
    if file and Path(file).is_file():
        shutil.copyfile(file, directory / "policy.py")
        options = {**scenario.raw.get("options", {}), "policy": f"policy.py:{name}"}
        copy = replace(scenario, raw={**scenario.raw, "options": options})
        (directory / "scenario.yaml").write_text(dump(copy), encoding="utf-8")
