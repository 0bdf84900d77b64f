"""What exists: the hook table, byte layouts, GPU profiles, dialects and error codes, as data with loaders.

Everything here is read from TOML files beside this module into frozen dataclasses; numpy is imported only when a
dtype is asked for. A file that breaks a rule raises `SpecError` with one line that names file, thing, cause and mend.
"""

from lab.spec._dialect_forms import dialect_names, load_dialect
from lab.spec._dialects import Dialect, LedgerDialect, LedgerRow, Limit
from lab.spec._errors import ErrorCode, ErrorTable, load_errors
from lab.spec._failures import FailureTable, load_failures
from lab.spec._hooks import FOREIGN, Hook, HookTable, Steps, load_hooks
from lab.spec._layouts import Field, Layout, Struct, layout_names, load_layout, read_layout
from lab.spec._signatures import load_signatures
from lab.spec._toml import SpecError
from lab.spec.profile import DEFAULT_DRIVER, Driver, Profile, driver_names, load_driver, load_profile, profile_names

__all__ = [
    "DEFAULT_DRIVER",
    "FOREIGN",
    "Dialect",
    "Driver",
    "ErrorCode",
    "ErrorTable",
    "FailureTable",
    "Field",
    "Hook",
    "HookTable",
    "Layout",
    "LedgerDialect",
    "LedgerRow",
    "Limit",
    "Profile",
    "SpecError",
    "Steps",
    "Struct",
    "dialect_names",
    "driver_names",
    "layout_names",
    "load_dialect",
    "load_driver",
    "load_errors",
    "load_failures",
    "load_hooks",
    "load_layout",
    "load_profile",
    "load_signatures",
    "profile_names",
    "read_layout",
]
