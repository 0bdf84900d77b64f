"""Public reports about lookups (B01 to B31), the right value of each; docs/decisions.md settles where they disagree."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.hooks.model import ESCAPE, HOOKED, OUT, PASSES, WRONG, Matrix
from lab.spec import load_hooks, load_signatures

HOSTS = Path(__file__).parents[1] / "native" / "shim"
TABLE = load_hooks()
RESOLVERS = ("resolver1", "resolver2", "depth3", "entry-point")
BY_NAME = ("link", "dlsym", "default", "next", "dlvsym")
Compile = Callable[..., Path]
Run = Callable[..., list[str]]
Examine = Callable[..., Matrix]
Twin = Callable[..., Path]


def verdicts(matrix: Matrix, name: str, route: str = "", host: str = "program") -> set[str]:
    return {c.verdict for c in matrix.cells if c.name == name and route in ("", c.route) and c.host == host}


def escapes(matrix: Matrix, route: str) -> bool:
    return any(c.verdict == ESCAPE and c.route == route for c in matrix.cells)


ROUTES = """name: mixed routes
containers:
  tenant:
    limits: {memory: 1GiB}
    processes:
      - name: app
        steps:
          - init
          - alloc: {bytes: 513MiB, as: first, route: FIRST}
          - alloc: {bytes: 513MiB, as: second, route: SECOND}
expect:
  - outcome: {step: first, ok: 1}
  - outcome: {step: second, oom: 1}
"""


@pytest.mark.report("B01")
@pytest.mark.parametrize(("first", "second"), [("link", "getproc"), ("getproc", "dlsym"), ("getproc1", "link")])
def test_b01_mixed_routes_share_one_limit(
    hooklab: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, first: str, second: str
) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(ROUTES.replace("FIRST", first).replace("SECOND", second))
    done = hooklab("run", file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.report("B01", plants="NO_RESOLVER")
def test_b01_an_interposer_without_a_resolver_hook_is_seen(examine: Examine, twin: Twin) -> None:
    assert escapes(examine(twin("NO_RESOLVER")), "resolver2")


@pytest.mark.report("B02", plants="V1_ONLY")
def test_b02_both_generations_of_the_resolver(ours: Matrix, examine: Examine, twin: Twin) -> None:
    assert TABLE["cuGetProcAddress"].hooked
    assert TABLE["cuGetProcAddress_v2"].hooked
    for name in ("cuInit", "cuMemAlloc_v2", "cuGetProcAddress_v2"):
        assert verdicts(ours, name, "resolver2") == verdicts(ours, name, "dlsym") == {HOOKED}
    leaky = examine(twin("V1_ONLY"))
    assert escapes(leaky, "resolver2")
    assert verdicts(leaky, "cuMemAlloc_v2", "resolver1") == {HOOKED}


@pytest.mark.report("B04", plants="RESOLVER_LEAK")
def test_b04_the_resolver_of_the_resolver(ours: Matrix, examine: Examine, twin: Twin) -> None:
    assert verdicts(ours, "cuMemAlloc_v2", "depth3") == {HOOKED}
    deep = [one for one in ours.ledger if one.route == "depth3"]
    assert {one.taken for one in deep if "Async" not in one.allocate} == {4 << 20}
    assert {one.taken for one in deep if "Async" in one.allocate} == {32 << 20}  # the first step of a pool
    assert escapes(examine(twin("RESOLVER_LEAK")), "depth3")


@pytest.mark.report("B05", plants="WIDE_PREFIX")
def test_b05_every_handle_kind_and_no_foreign_name(ours: Matrix, examine: Examine, twin: Twin) -> None:
    for host in ("program", "plugin-local", "plugin-global"):
        for route in ("dlsym", "default", "next"):
            assert verdicts(ours, "cuMemAlloc_v2", route, host) == {HOOKED}, (host, route)
    assert not [finding for finding in ours.findings if finding.kind == "prefix-too-wide"]
    wide = [finding.text for finding in examine(twin("WIDE_PREFIX")).findings if finding.kind == "prefix-too-wide"]
    assert wide
    assert "cublasCreate_v2" in wide[0]
    assert "curl_easy_init" in wide[0]


@pytest.mark.report("B06", plants="SHIFTED")
def test_b06_the_recorded_name_is_the_requested_one(ours: Matrix, examine: Examine, twin: Twin) -> None:
    assert verdicts(ours, "cuMemFreeAsync") == {HOOKED}
    taken = {(one.route, one.taken, one.left) for one in ours.ledger if one.allocate == "cuMemAllocAsync"}
    assert {(took, left) for _, took, left in taken} == {(32 << 20, 0)}  # a pool's first step
    assert {"link", "dlsym", "resolver2"} <= {route for route, _, _ in taken}
    shifted = examine(twin("SHIFTED"))
    assert {c.note for c in shifted.faults() if c.name == "cuMemAlloc_v2"} == {"reached cuMemFree_v2"}


@pytest.mark.report("B07", plants="NO_NVML")
def test_b07_nvml_is_hooked_in_what_ships(ours: Matrix, examine: Examine, twin: Twin) -> None:
    for route in BY_NAME:
        assert verdicts(ours, "nvmlDeviceGetMemoryInfo", route) == {HOOKED}
    assert "library-lost" in {finding.kind for finding in examine(twin("NO_NVML")).findings}


@pytest.mark.report("B08", plants="ABSENT")
def test_b08_nothing_is_invented_and_generations_stay_apart(ours: Matrix, examine: Examine, twin: Twin) -> None:
    absent = {hook.name for hook in TABLE.hooks if hook.fake == "absent"}
    assert absent
    assert not absent & {c.name for c in ours.cells}
    assert verdicts(ours, "cuMemAlloc", "dlsym") == {HOOKED}  # the 32-bit function, itself
    assert TABLE.resolve("cuMemAlloc", 12000) == (0, "cuMemAlloc_v2")
    at = {c.version for c in ours.cells if c.route == "resolver2" and c.name == "cuMemAlloc"}
    assert at
    assert max(at) < TABLE["cuMemAlloc_v2"].since
    assert {"cuCheckpointOperationComplete"} == {c.name for c in examine(twin("ABSENT")).faults()}


@pytest.mark.report("B09", plants="a plug-in that binds deeply")
def test_b09_deep_binding_is_never_green(ours: Matrix) -> None:
    assert {c.verdict for c in ours.cells if c.host == "plugin-deepbind"} == {OUT}


@pytest.mark.report("B13", "B14", "B16", plants="NEWEST")
def test_b13_the_variant_is_the_drivers_own_choice(ours: Matrix, examine: Examine, twin: Twin) -> None:
    bases = {base for base, steps in TABLE.resolver().items() if len(steps.legacy) > 1}
    assert len(bases) > 50
    for name in (name for base in bases for _, name in TABLE.resolver()[base].legacy):
        seen = verdicts(ours, name, "resolver2")
        assert seen == ({HOOKED} if TABLE[name].hooked else {PASSES}), name
    assert WRONG in verdicts(examine(twin("NEWEST")), "cuMemAlloc", "resolver2")


@pytest.mark.report("B14")
def test_b14_context_creation_by_version(ours: Matrix) -> None:
    """A real driver gives the fourth form from 12050 on: three arguments belong to versions below 11040."""
    answers = {
        version: TABLE.resolve("cuCtxCreate", version)[1] for version in (3020, 11030, 11040, 12040, 12090, 13000)
    }
    assert list(answers.values()) == ["cuCtxCreate_v2"] * 2 + ["cuCtxCreate_v3"] * 2 + ["cuCtxCreate_v4"] * 2
    assert [len(load_signatures()[name]) for name in ("cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4")] == [
        3,
        5,
        4,
    ]
    for name in ("cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4"):
        for route in RESOLVERS:
            assert verdicts(ours, name, route) == {HOOKED}, (name, route)


@pytest.mark.report("B15", plants="V2_V1_ARGS")
def test_b15_no_argument_is_lost(ours: Matrix, examine: Examine, twin: Twin) -> None:
    for name in ("nvmlDeviceGetFanSpeed_v2", "nvmlDeviceGetRetiredPages_v2"):
        assert verdicts(ours, name, "dlsym") <= {HOOKED, PASSES}
    lost = examine(twin("V2_V1_ARGS"))
    assert {c.note for c in lost.faults() if c.name == "nvmlDeviceGetFanSpeed_v2"} == {"argument 3 arrived changed"}


@pytest.mark.report("B16")
def test_b16_one_name_two_arities(ours: Matrix) -> None:
    assert TABLE.resolve("cuMemcpyBatchAsync", 12080) == (0, "cuMemcpyBatchAsync")
    assert TABLE.resolve("cuMemcpyBatchAsync", 13000) == (0, "cuMemcpyBatchAsync_v2")
    arities = [len(load_signatures()[name]) for name in ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2")]
    assert arities == [9, 8]
    for name in ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"):
        assert verdicts(ours, name, "resolver2") == {PASSES}  # untouched: the driver gets exactly what was passed


@pytest.mark.report("B18", plants="a legacy name that is the modern function")
def test_b18_a_legacy_name_stays_legacy(
    compile_c: Compile, native: Path, root: Path, hooklab: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    text = """
        #include <stdio.h>
        int cuInit(unsigned); int cuDevicePrimaryCtxRetain(void **, int); int cuCtxSetCurrent(void *);
        int cuMemAlloc_v2(unsigned long long *, unsigned long);
        int cuMemGetAddressRange(unsigned *, unsigned *, unsigned);
        int cuMemGetAddressRange_v2(unsigned long long *, unsigned long *, unsigned long long);
        int main(void) {
            void *context = 0;
            unsigned long long pointer = 0, base = 0;
            unsigned long size = 0;
            unsigned b, s;
            cuInit(0), cuDevicePrimaryCtxRetain(&context, 0), cuCtxSetCurrent(context);
            cuMemAlloc_v2(&pointer, 1 << 20);
            int modern = cuMemGetAddressRange_v2(&base, &size, pointer);
            int legacy = cuMemGetAddressRange(&b, &s, (unsigned)pointer);
            int apart = (void *)cuMemGetAddressRange != (void *)cuMemGetAddressRange_v2;
            printf("%d %d %d %d\\n", modern, base == pointer, legacy != 0, apart);
            return 0;
        }"""
    program = compile_c(text, "-w", "-fno-builtin", f"-L{native}/fake", "-l:libcuda.so.1", name="ranges")
    assert hooklab("exec", "--", program).stdout.splitlines()[-1] == "0 1 1 1"
    alike = """
        int cuMemGetAddressRange_v2(unsigned long long *, unsigned long *, unsigned long long);
        int cuMemGetAddressRange(unsigned long long *base, unsigned long *size, unsigned long long pointer);
        int cuMemGetAddressRange(unsigned long long *base, unsigned long *size, unsigned long long pointer) {
            (void)pointer, *base = *size = 1;
            return 0;
        }"""
    planted = compile_c(alike, "-w", "-shared", "-fPIC", name="libalike.so")
    done = hooklab("exec", "--interposer", planted, "--", program)
    assert done.stdout.splitlines()[-1].split()[2] == "0"  # the legacy name takes a modern pointer: seen


@pytest.fixture(scope="session")
def forwarding(compile_c: Compile) -> tuple[Path, Path]:
    """A library that forwards by lookup, and a program that asks it, linked to it by an RUNPATH."""
    shared = ("-shared", "-fPIC", "-w")
    dependency = compile_c(HOSTS / "forwarder.c", *shared, "-DDEPENDENCY", name="libcudnn_dependency.so")
    folder = f"-L{dependency.parent}"
    forwarder = compile_c(
        HOSTS / "forwarder.c",
        *shared,
        folder,
        "-Wl,--no-as-needed,-rpath,$ORIGIN",
        "-lcudnn_dependency",
        name="libcudnn.so",
    )
    text = """
        #include <dlfcn.h>
        #include <stdio.h>
        int main(void) {
            void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
            int (*create)(int) = dlsym(library, "cudnnCreate"), (*ask)(const char *) = dlsym(library, "ask_default");
            printf("%d %d\\n", create(0), ask("priv"));
            return 0;
        }"""
    program = compile_c(text, "-w", f'-DLIBRARY="{forwarder}"', name="asks_forwarder")
    return program, forwarder


@pytest.mark.report("B22")
def test_b22_a_foreign_next_keeps_its_caller(run: Run, compile_c: Compile, shim: Path) -> None:
    """Its full form is test_next_of_a_foreign_name_keeps_its_caller; here the OpenMP case: a weak name of its own."""
    first = """
        #include <dlfcn.h>
        __attribute__((weak)) int foo(void) { int (*next)(void) = dlsym(RTLD_NEXT, "foo"); return next() + 10; }
    """
    a = compile_c(first, "-shared", "-fPIC", "-w", name="libfoo_a.so")
    b = compile_c("int foo(void); int foo(void) { return 1; }\n", "-shared", "-fPIC", name="libfoo_b.so")
    main = 'int foo(void);\n#include <stdio.h>\nint main(void) { return printf("%d\\n", foo()) < 0; }\n'
    program = compile_c(main, str(b), name="asks_foo")
    assert run(program, preload=[shim, a]) == run(program, preload=[a]) == ["11"]


@pytest.mark.report("B23")
def test_b23_it_works_from_any_folder(run: Run, native: Path, forwarding: tuple[Path, Path], tmp_path: Path) -> None:
    moved = Path(shutil.copy(native / "libhooklab-preload.so", tmp_path / "elsewhere.so"))
    program, _ = forwarding
    assert run(program) == run(program, preload=[moved]) == ["2 7"]


@pytest.mark.report("B23", plants="SELF_BY_PATH")
def test_b23_an_interposer_that_finds_itself_is_seen(examine: Examine, twin: Twin) -> None:
    assert {c.name for c in examine(twin("SELF_BY_PATH")).faults()} == {"cuMemAlloc_v2"}


@pytest.mark.report("B24")
def test_b24_the_drivers_own_lookups_get_the_driver(run: Run, compile_c: Compile, mini: Path, shim: Path) -> None:
    """Its full form is test_lookups_of_the_driver_find_the_driver; the application's lookup stays hooked meanwhile."""
    asks = compile_c(HOSTS / "asks.c", "-w", name="asks_corpus")
    assert run(asks, "inside", preload=[shim])[0] == "libcuda.so.1 cuMemAlloc_v2"
    assert run(asks, "handle", "cuInit", preload=[shim]) == ["libhooklab-preload.so cuInit"]


@pytest.mark.report("B27")
def test_b27_default_lookups_keep_the_callers_scope(
    run: Run, shim: Path, forwarding: tuple[Path, Path], ours: Matrix
) -> None:
    program, _ = forwarding
    assert run(program, preload=[shim]) == run(program)
    assert not [finding for finding in ours.findings if finding.kind == "lookup-allocates"]


@pytest.mark.report("B27", plants="ALLOCATES")
def test_b27_a_lookup_that_allocates_is_seen(examine: Examine, twin: Twin) -> None:
    assert "lookup-allocates" in {finding.kind for finding in examine(twin("ALLOCATES")).findings}


@pytest.mark.report("B28")
def test_b28_hundreds_of_lookups_before_init(ours: Matrix) -> None:
    """The plug-in host opens the driver locally and asks for everything before cuInit, none deeper than twice."""
    before = [c for c in ours.cells if c.host == "plugin-local"]
    assert len(before) > 20000
    assert not [
        f for f in ours.findings if f.kind in ("lookup-recursion", "lookup-calls-driver", "walk-broken", "init-differs")
    ]


@pytest.mark.report("B30", plants="a start that is guarded against itself")
def test_b30_a_driver_that_calls_its_own_export(run: Run, compile_c: Compile, shim: Path, tmp_path: Path) -> None:
    flags = ("-shared", "-fPIC", "-w", "-Wl,-soname,libnvidia-ml.so.1")
    library = compile_c(HOSTS / "calling_nvml.c", *flags, name="calling_nvml.so").rename(tmp_path / "libnvidia-ml.so.1")
    program = compile_c(HOSTS / "inits.c", "-w", str(library), name="inits")
    assert run(program, drivers=tmp_path) == run(program, preload=[shim], drivers=tmp_path) == ["0 1"]
    guarded = """
        #define _GNU_SOURCE
        #include <dlfcn.h>
        static int inside;
        int nvmlInit_v2(void) {
            inside = 1;
            return ((int (*)(void))dlsym(RTLD_NEXT, "nvmlInit_v2"))();
        }
        int nvmlInitWithFlags(unsigned flags) {
            return inside ? 999 : ((int (*)(unsigned))dlsym(RTLD_NEXT, "nvmlInitWithFlags"))(flags);
        }"""
    planted = compile_c(guarded, "-w", "-shared", "-fPIC", name="libguarded.so")
    assert run(program, preload=[planted], drivers=tmp_path) == ["999 0"]


@pytest.mark.report("B31")
def test_b31_a_burst_of_nvml_lookups_before_init(run: Run, compile_c: Compile, generated: Path, shim: Path) -> None:
    program = compile_c(HOSTS / "burst.c", "-w", extra=[generated / "hl_names.c"], name="burst")
    there = sum(hook.library == "nvml" for hook in TABLE.hooks)
    assert run(program) == run(program, preload=[shim]) == [f"{there} same"]
