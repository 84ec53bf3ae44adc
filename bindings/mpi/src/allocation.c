/*
 * allocation.c: MPI_Alloc_mem returns memory that the service process maps too, the fastest buffers for collectives.
 *
 * If there is no such memory (not attached, or none left), and for pieces too small to matter, the MPI library's own
 * allocator serves. MPI_Free_mem distinguishes the two kinds of memory by address. Memory that the program has not
 * given back by MPI_Finalize stays mapped.
 */
#include <pthread.h>
#include <stdlib.h>

#include "allocation.h"
#include "library.h"
#include "report.h"

/* Sharing less than a page costs more memory than the piece holds. */
#define SHARED_FROM 4096

struct allocation {
    void *memory;
    struct allocation *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;

void *allocation_make(MPI_Aint size)
{
    outboard_context *context = library_context();
    if (context == NULL || size < SHARED_FROM)
        return NULL;
    struct allocation *allocation = malloc(sizeof *allocation);
    if (allocation == NULL)
        return NULL;
    if (outboard.alloc(context, (size_t)size, &allocation->memory) != OUTBOARD_OK) {
        free(allocation);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    allocation->next = allocations;
    allocations = allocation;
    pthread_mutex_unlock(&lock);
    report_count_allocated();
    return allocation->memory;
}

bool allocation_free(void *memory)
{
    pthread_mutex_lock(&lock);
    struct allocation **at = &allocations;
    while (*at != NULL && (*at)->memory != memory)
        at = &(*at)->next;
    struct allocation *found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&lock);
    if (found == NULL)
        return false;
    free(found);
    if (library_context() != NULL)
        outboard.dealloc(library_context(), memory);
    return true;
}
