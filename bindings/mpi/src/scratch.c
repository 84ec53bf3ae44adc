/*
 * scratch.c: large blocks that the shim needs for a short time, each in its own mapping.
 *
 * malloc would change the program. After glibc frees a block that had its own mapping, it serves blocks up to that
 * size from the heap (mallopt(3), M_MMAP_THRESHOLD). The program's memory then lies elsewhere than natively. Names and
 * offers of all ranks, files and packed elements come from here, but not lists of a few numbers for each rank.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "scratch.h"
#include "shim.h"

struct scratch {
    size_t mapped; /* bytes, including this header */
    _Alignas(64) unsigned char memory[];
};

void *scratch_allocate(size_t bytes)
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

void scratch_free(void *memory)
{
    if (memory == NULL)
        return;
    struct scratch *made = address_plus(memory, -(int64_t)offsetof(struct scratch, memory));
    munmap(made, made->mapped);
}
