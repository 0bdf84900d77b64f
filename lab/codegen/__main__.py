"""python -m lab.codegen emit|build|coverage: generated text and native parts, by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.codegen import build, coverage, emit
from lab.codegen._write import write_files
from lab.codegen.failure import BuildError
from lab.spec import SpecError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.codegen", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    emitter = commands.add_parser("emit", help="write the generated files")
    emitter.add_argument("--out", type=Path, required=True, help="folder to fill")
    builder = commands.add_parser("build", help="build the native parts of a clone")
    builder.add_argument("--out", type=Path, help="where natives go (default: lab/_native)")
    builder.add_argument("--temp", type=Path, help="objects and generated files (default: build/native)")
    builder.add_argument("--only", nargs="+", default=[], metavar="TARGET", help=", ".join(build.BY_NAME))
    builder.add_argument(
        "--sanitize", choices=sorted(build.SANITIZERS), help="into build/KIND/out unless --out is given"
    )
    commands.add_parser("coverage", help="write docs/coverage.md: every name, its behaviour, its tests")
    options = parser.parse_args(arguments)
    try:
        if options.command == "coverage":
            target = build.ROOT / "docs" / "coverage.md"
            target.write_text(coverage.text(build.ROOT / "tests"), encoding="utf-8")
            print(target)
            return 0
        if options.command == "emit":
            for name in write_files(options.out, emit.emit()):
                print(options.out / name)
            return 0
        out = options.out.absolute() if options.out else None
        temp = options.temp.absolute() if options.temp else None
        for path in build.build(out=out, temp=temp, only=options.only, sanitize=options.sanitize):
            print(path)
    except (BuildError, SpecError) as error:
        print(f"hooklab build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
