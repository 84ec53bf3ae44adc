/* compute.c: see compute.h. */
#include "compute.h"

enum { WIDTH = 256, LINE = 64, PAGE = 4096 };

/* The place of code and data within a cache line changes the speed of so short a loop by a factor of up to two. The
 * alignment makes the linker place code and data alike in every program. */
static double cells[WIDTH] __attribute__((aligned(PAGE)));

__attribute__((aligned(LINE))) void compute_units(uint64_t units)
{
    /* Each cell follows a contracting map, so the values stay finite however long the loop runs. */
    for (uint64_t unit = 0; unit < units; unit++) {
        for (int at = 0; at < WIDTH; at++)
            cells[at] = cells[at] * 0.5 + 1.0;
        /* Keeps the compiler from folding units into one another. */
        __asm__ volatile("" : : : "memory");
    }
}
