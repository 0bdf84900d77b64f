/* What the limiter's files ask of the rest of the shim, for the hosts of this folder: one device, books that are open, no
 * board, nobody who listens. */
#include "engine.h"
#include "ledger.h"
#include "pacing.h"

__thread int hl_depth;
void *hl_real_table[HL_NAME_COUNT];
struct hl_limits hl_limits;
uint32_t hl_hidden_on;

void *hl_real_load(int id) { return hl_real_table[id]; }
bool hl_ready(void) { return true; }
int hl_devices_count(void) { return 1; }
bool hl_books_usable(void) { return hl_ledger_is_open(); }
void hl_log(int level, const char *format, ...) { (void)level, (void)format; }
void hl_hidden_launched(const void *object) { (void)object; }

struct hl_board_row *hl_board_take(int device) { return (void)device, NULL; }
void hl_board_ran(struct hl_board_row *row, uint64_t start, uint64_t end, bool whole) {
    (void)row, (void)start, (void)end, (void)whole;
}
void hl_board_leave(void) {}
void hl_board_fork_child(void) {}
