/* The exported dlsym and dlvsym on x86_64: hl_lookup(handle, name, version, return address) answers {value, jump} in
 * rax and rdx. With a jump the registers and the stack are as the caller left them, so libc sees the real caller even
 * from programs built without optimisation, which no C compiler here promises. */
#if defined(__x86_64__)
    .text

    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    xorl %edx, %edx
    movq 24(%rsp), %rcx
    call hl_lookup
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rdx, %rdx
    jnz 1f
    ret
1:  jmp *%rdx
    .cfi_endproc
    .size dlsym, . - dlsym

    .globl dlvsym
    .type dlvsym, @function
dlvsym:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    movq 24(%rsp), %rcx
    call hl_lookup
    movq %rdx, %r11
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %r11, %r11
    jnz 1f
    ret
1:  jmp *%r11
    .cfi_endproc
    .size dlvsym, . - dlvsym
#endif
    .section .note.GNU-stack, "", %progbits
