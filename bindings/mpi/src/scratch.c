/*
 * scratch.c: large blocks of the shim's own for a short time, mapped for themselves.
 *
 * malloc would change the program: once a block that glibc had mapped for itself is freed, blocks up to its size come
 * from the heap, and the program's memory lies elsewhere than natively (mallopt(3), M_MMAP_THRESHOLD). Names and offers
 * of all ranks, files and packed elements are taken here; lists of a few numbers for each rank are not.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "shim.h"

struct scratch {
    size_t mapped; /* bytes, with this */
    _Alignas(64) unsigned char memory[];
};

void *scratch_take(size_t bytes)
{
    size_t mapped = sizeof(struct scratch) + bytes;
    if (mapped < bytes)
        return NULL;
    struct scratch *made = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return NULL;
    made->mapped = mapped;
    return made->memory;
}

void scratch_give(void *memory)
{
    if (memory == NULL)
        return;
    struct scratch *made = moved(memory, -(int64_t)offsetof(struct scratch, memory));
    munmap(made, made->mapped);
}
