"""The text that becomes of the spec: C tables, layout headers, export lists; and the build of the native parts.

`lab.codegen.emit.emit()` is the pure generator, `lab.codegen.build.build()` the driver;
`python -m lab.codegen` runs both by hand.
"""
