/* Why a tier did not answer, in words. */
#include "identity.h"

static const char *const texts[HL_REASON_COUNT] = {
    [HL_REASON_ANSWERED] = "answered",
    [HL_REASON_DISABLED] = "not enabled",
    [HL_REASON_BAD_GATE] = "its variable has a value that enables nothing",
    [HL_REASON_NO_DIRECTORY] = "the broker's directory is not there",
    [HL_REASON_DIRECTORY_TYPE] = "the broker's directory is a link or no directory",
    [HL_REASON_DIRECTORY_OWNER] = "the broker's directory is not known to be root's",
    [HL_REASON_DIRECTORY_MODE] = "others may write to the broker's directory",
    [HL_REASON_NO_SOCKET] = "the broker's socket is not there",
    [HL_REASON_SOCKET_TYPE] = "the broker's socket is a link or no socket",
    [HL_REASON_SOCKET_OWNER] = "the broker's socket is not known to be root's",
    [HL_REASON_REFUSED] = "nobody listens at the broker's socket",
    [HL_REASON_DENIED] = "this user may not connect to the broker",
    [HL_REASON_CONNECT_TIMEOUT] = "the broker took no connection in time",
    [HL_REASON_PEER_USER] = "who listens at the broker's socket is not known to be root",
    [HL_REASON_TIMEOUT] = "the broker did not answer in time",
    [HL_REASON_CLOSED] = "the broker closed before its answer was whole",
    [HL_REASON_FRAME] = "the broker's answer is not of this protocol",
    [HL_REASON_STATUS] = "the broker refused",
    [HL_REASON_BAD_PID] = "the broker's answer has no possible PID",
    [HL_REASON_NOT_PROCFS] = "no procfs is mounted there",
    [HL_REASON_NOT_SEEN] = "that procfs does not show this process",
    [HL_REASON_NO_FIELD] = "that procfs has no NStgid",
    [HL_REASON_MALFORMED] = "the NStgid line is malformed",
    [HL_REASON_TOO_DEEP] = "the NStgid line has more levels than a kernel nests",
    [HL_REASON_OTHER_PROCESS] = "the NStgid line is not this process's",
    [HL_REASON_PRIVATE_PROCFS] = "that procfs belongs to a private PID namespace",
    [HL_REASON_UNPROVEN] = "that procfs does not show that it is the machine's first",
    [HL_REASON_NO_DEVICE] = "no CUDA device to try it on",
    [HL_REASON_NO_NVML] = "NVML does not know the device or the process list",
    [HL_REASON_GATE] = "the node's gate for that GPU cannot be opened",
    [HL_REASON_GATE_TIMEOUT] = "the node's gate for that GPU stayed closed",
    [HL_REASON_NO_CONTEXT] = "no context could be made to be seen with",
    [HL_REASON_NOT_LISTED] = "NVML did not list this process",
    [HL_REASON_AMBIGUOUS] = "NVML showed more than one process that could be this one",
    [HL_REASON_UNCONFIRMED] = "the process that NVML showed did not do what this one did",
    [HL_REASON_SYSTEM] = "a system call failed",
    [HL_REASON_INNER_PIDS] = "NVML reports PIDs of this namespace here, not the machine's",
};

const char *hl_reason_text(int reason) {
    return reason >= 0 && reason < HL_REASON_COUNT && texts[reason] ? texts[reason] : "unknown";
}
