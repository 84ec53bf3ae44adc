/*
 * unpack.c: unpacks bytes that arrive packed, and writes them to the program's buffer.
 */
#include <stdlib.h>

#include "unpack.h"
#include "memory.h"
#include "shim.h"

static void free_types(struct unpack *unpack)
{
    for (int i = 0; i < unpack->types_count; i++)
        mpi.Type_free(&unpack->types[i]);
    free(unpack->types);
    unpack->types = NULL;
    unpack->types_count = 0;
}

/* Duplicates the datatypes of the pieces, each run of equal ones once. */
static int copy_types(struct unpack *unpack)
{
    unpack->types = malloc(((size_t)unpack->count + 1) * sizeof *unpack->types);
    if (unpack->types == NULL)
        return MPI_ERR_NO_MEM;
    int code = MPI_SUCCESS;
    MPI_Datatype previous = MPI_DATATYPE_NULL;
    for (int i = 0; i < unpack->count && code == MPI_SUCCESS; i++) {
        struct piece *piece = &unpack->pieces[i];
        MPI_Datatype *copy = &unpack->types[unpack->types_count];
        if (unpack->types_count == 0 || piece->type != previous) {
            code = mpi.Type_contiguous(1, piece->type, copy);
            if (code != MPI_SUCCESS)
                return code;
            unpack->types_count++;
            code = mpi.Type_commit(copy);
        }
        previous = piece->type;
        piece->type = unpack->types[unpack->types_count - 1];
    }
    return code;
}

int unpack_prepare(struct unpack *unpack, void *receive, struct piece *pieces, int count, uint64_t bytes)
{
    *unpack = (struct unpack){.receive = receive, .pieces = pieces, .count = count};
    int code = copy_types(unpack);
    if (code == MPI_SUCCESS) {
        unpack->bounce = bounce_acquire(bytes);
        if (unpack->bounce != NULL)
            return MPI_SUCCESS;
        code = MPI_ERR_NO_MEM;
    }
    free_types(unpack);
    free(pieces);
    unpack->pieces = NULL;
    return code;
}

int unpack_finish(struct unpack *unpack, bool arrived)
{
    int code = MPI_SUCCESS;
    if (unpack->bounce == NULL)
        return code;
    uint64_t at = 0;
    for (int i = 0; arrived && code == MPI_SUCCESS && i < unpack->count; i++) {
        const struct piece *piece = &unpack->pieces[i];
        code = convert_elements(false, address_plus(unpack->receive, piece->offset), piece->elements, piece->type,
                                &piece->shape, address_plus(unpack->bounce, (int64_t)at));
        at += piece->elements * piece->shape.size;
    }
    bounce_release(unpack->bounce);
    unpack->bounce = NULL;
    free(unpack->pieces);
    unpack->pieces = NULL;
    free_types(unpack);
    return code;
}
