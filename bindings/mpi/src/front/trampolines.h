/*
 * trampolines.h: a function that jumps to wherever its slot points, with all arguments as they are.
 *
 * A slot points to code that calls front_resolve() first, and jumps again afterwards. A trampoline leaves no frame, so
 * the function behind it sees the caller's return address.
 */
#ifndef OUTBOARD_MPI_TRAMPOLINES_H
#define OUTBOARD_MPI_TRAMPOLINES_H

#if defined __x86_64__
#define JUMP(symbol) "jmp *slot_" #symbol "(%rip)\n"
#define RESOLVE(symbol) "leaq slot_" #symbol "(%rip), %r11\njmp front_first\n"
/* The registers of integer arguments are kept. Functions of MPI have no other arguments. */
__asm__(".pushsection .text\n"
        ".type front_first, @function\n"
        "front_first:\n"
        "pushq %rdi\npushq %rsi\npushq %rdx\npushq %rcx\npushq %r8\npushq %r9\npushq %r11\n"
        "call front_resolve\n"
        "popq %r11\npopq %r9\npopq %r8\npopq %rcx\npopq %rdx\npopq %rsi\npopq %rdi\n"
        "jmp *(%r11)\n"
        ".size front_first, . - front_first\n"
        ".popsection\n");
/* dlopen() looks at its caller's search path, so it is jumped to, too. */
__asm__(".pushsection .text\n"
        ".globl dlopen\n"
        ".type dlopen, @function\n"
        "dlopen:\n"
        "pushq %rdi\npushq %rsi\nsubq $8, %rsp\n"
        "call front_before_dlopen\n"
        "addq $8, %rsp\npopq %rsi\npopq %rdi\n"
        "jmp *%rax\n"
        ".size dlopen, . - dlopen\n"
        ".popsection\n");
#elif defined __aarch64__
#define JUMP(symbol) "adrp x16, slot_" #symbol "\nldr x17, [x16, :lo12:slot_" #symbol "]\nbr x17\n"
#define RESOLVE(symbol) "adrp x16, slot_" #symbol "\nadd x16, x16, :lo12:slot_" #symbol "\nb front_first\n"
__asm__(".pushsection .text\n"
        ".type front_first, %function\n"
        "front_first:\n"
        "stp x0, x1, [sp, #-96]!\nstp x2, x3, [sp, #16]\nstp x4, x5, [sp, #32]\nstp x6, x7, [sp, #48]\n"
        "stp x16, x30, [sp, #64]\n"
        "bl front_resolve\n"
        "ldp x16, x30, [sp, #64]\nldp x6, x7, [sp, #48]\nldp x4, x5, [sp, #32]\nldp x2, x3, [sp, #16]\n"
        "ldp x0, x1, [sp], #96\n"
        "ldr x17, [x16]\nbr x17\n"
        ".size front_first, . - front_first\n"
        ".popsection\n");
__asm__(".pushsection .text\n"
        ".globl dlopen\n"
        ".type dlopen, %function\n"
        "dlopen:\n"
        "stp x0, x1, [sp, #-32]!\nstr x30, [sp, #16]\n"
        "bl front_before_dlopen\n"
        "mov x16, x0\n"
        "ldr x30, [sp, #16]\nldp x0, x1, [sp], #32\n"
        "br x16\n"
        ".size dlopen, . - dlopen\n"
        ".popsection\n");
#else
#error "the MPI shim has trampolines for x86-64 and aarch64"
#endif

/* Defines the visible function `symbol`, and its slot. */
#define TRAMPOLINE(symbol, name)                                                                                       \
    __asm__(".pushsection .text\n.globl " #symbol "\n.type " #symbol ", %function\n.p2align 4\n" #symbol ":\n"         \
            JUMP(symbol) "first_" #symbol ":\n" RESOLVE(symbol) ".size " #symbol ", . - " #symbol "\n"                 \
            ".popsection\n");                                                                                          \
    void symbol(void);                                                                                                 \
    void first_##symbol(void) __attribute__((visibility("hidden")));                                                   \
    any_function *volatile slot_##symbol __attribute__((used, visibility("hidden"))) = first_##symbol;

#endif
