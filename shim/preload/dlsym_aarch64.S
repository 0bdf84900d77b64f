/* The exported dlsym and dlvsym on aarch64: hl_lookup(handle, name, version, return address) answers {value, jump} in
 * x0 and x1. With a jump the argument registers and the link register are as the caller left them, so libc sees the
 * real caller. */
#if defined(__aarch64__)
    .text

    .macro entry name, version
    .globl \name
    .type \name, %function
    .p2align 2
\name:
    .cfi_startproc
    hint #34 /* bti c */
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    mov x29, sp
    stp x0, x1, [sp, #16]
    .if \version
    str x2, [sp, #32]
    .else
    mov x2, xzr
    .endif
    mov x3, x30
    bl hl_lookup
    cbnz x1, 1f
    ldp x29, x30, [sp], #48
    .cfi_remember_state
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    ret
1:  .cfi_restore_state
    mov x16, x1
    ldp x0, x1, [sp, #16]
    .if \version
    ldr x2, [sp, #32]
    .endif
    ldp x29, x30, [sp], #48
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    br x16
    .cfi_endproc
    .size \name, . - \name
    .endm

    entry dlsym, 0
    entry dlvsym, 1
#endif
    .section .note.GNU-stack, "", %progbits
