"""What no preloaded library can reach is said to be out of reach, and each is tried."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.hooks import probes
from lab.hooks.model import OUT, Matrix

Compile = Callable[..., Path]
MAPPED = """
#include <stdio.h>
#include <string.h>
int main(void) {
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, "libhooklab-preload.so") != NULL;
    return printf("%d\\n", found) < 0;
}
"""
IOCTL = {  # ioctl(0, FIONREAD, &n) without the C library; leaves its result in `at`
    "x86_64": """
        register long at __asm__("rax") = 16;
        __asm__ volatile("syscall" : "+r"(at) : "D"(0), "S"(0x541bL), "d"(&n) : "rcx", "r11", "memory");
    """,
    "aarch64": """
        register long call __asm__("x8") = 29, at __asm__("x0") = 0, request __asm__("x1") = 0x541b;
        register void *where __asm__("x2") = &n;
        __asm__ volatile("svc 0" : "+r"(at) : "r"(call), "r"(request), "r"(where) : "memory");
    """,
}


def said(matrix: Matrix, subject: str) -> str:
    return next(finding.text for finding in matrix.findings if finding.kind == "probe" and finding.subject == subject)


def run(program: Path, environment: dict[str, str], **options: object) -> str:
    return subprocess.run([program], env=environment, capture_output=True, text=True, check=True, **options).stdout  # type: ignore[call-overload, no-any-return]


def test_a_static_program_is_out_of_reach(
    compile_c: Compile, native: Path, guest_environment: Callable[..., dict[str, str]], ours: Matrix
) -> None:
    preloaded = guest_environment(native / "libhooklab-preload.so")
    assert run(compile_c(MAPPED, name="dynamic_maps"), preloaded) == "1\n"
    assert run(compile_c(MAPPED, "-static", name="static_maps"), preloaded) == "0\n"
    assert said(ours, "static program").startswith(OUT)


def test_a_direct_ioctl_is_out_of_reach(
    compile_c: Compile, native: Path, guest_environment: Callable[..., dict[str, str]], ours: Matrix
) -> None:
    """An interposer of ioctl sees the call through the C library, and not the one made by hand."""
    seen = '#include <stdio.h>\nint ioctl(int f, unsigned long r, ...) { return printf("seen\\n") < 0; }\n'
    spy = compile_c(seen, "-shared", "-fPIC", "-w", name="libspy.so")
    head = "#include <sys/ioctl.h>\n#include <stdio.h>\nint main(void) { int n = 0;"
    libc = compile_c(f"{head} ioctl(0, FIONREAD, &n); return 0; }}", "-w", name="ioctl_libc")
    bare = compile_c(f"{head} {IOCTL[platform.machine()]} return at > 0; }}", "-w", name="ioctl_bare")
    environment = guest_environment(spy)
    assert run(libc, environment, stdin=subprocess.DEVNULL) == "seen\n"
    assert run(bare, environment, stdin=subprocess.DEVNULL) == ""
    assert said(ours, "direct ioctl").startswith(OUT)


def test_the_export_table_and_the_auditor_are_classified(ours: Matrix) -> None:
    assert said(ours, "cuGetExportTable").startswith(OUT)
    assert "every verdict is the same" in said(ours, "LD_AUDIT")


class Injected:
    """A session whose driver loads the tool, which then writes who answered it."""

    def __init__(self, folder: Path, answer: str) -> None:
        self.folder, self.answer = folder, answer

    def walk(self, host: str, *, interposed: bool, measure: bool = False, **variables: str) -> object:
        assert (host, interposed, measure) == ("program", True, True)
        assert Path(variables["CUDA_INJECTION64_PATH"]).name == "libhooklab-routes.so"
        if self.answer:
            Path(variables["HOOKLAB_INJECTION_REPORT"]).write_text(self.answer + "\n")
        return None


@pytest.mark.parametrize(
    ("answer", "fault", "text"),
    [
        ("", False, "only a real one"),
        ("/opt/lib/shim.so", False, "get the hooks"),
        ("/usr/lib/libcuda.so.1", True, "escapes"),
    ],
)
def test_an_injected_tool_is_judged_by_who_answers_it(
    native: Path, tmp_path: Path, answer: str, fault: bool, text: str
) -> None:
    found = probes.injection(Injected(tmp_path, answer), Path("/opt/lib/shim.so"))
    assert found.fault is fault
    assert text in found.text


def test_the_tool_reports_who_answers_it(
    native: Path, guest_environment: Callable[..., dict[str, str]], compile_c: Compile, tmp_path: Path
) -> None:
    text = """
        #include <dlfcn.h>
        int main(int argc, char **argv) {
            int (*entry)(void) = dlsym(dlopen(argv[1], RTLD_NOW), "InitializeInjection");
            return entry() != 1;
        }"""
    program = compile_c(text, "-w", name="loads_tool")
    for library in ("fake/libcuda.so.1", "libhooklab-preload.so"):
        report = tmp_path / "report"
        preload = [native / library] if library.startswith("lib") else []
        environment = guest_environment(*preload, HOOKLAB_INJECTION_REPORT=str(report))
        subprocess.run([program, native / "libhooklab-routes.so"], env=environment, check=True)
        assert report.read_text().strip() == str(native / library)
