/*
 * unpack.c: unpacks bytes that arrive packed, and writes them to the program's buffer.
 */
#include <stdlib.h>

#include "unpack.h"
#include "memory.h"
#include "shim.h"

int unpack_prepare(struct unpack *unpack, void *receive, struct piece *pieces, int count, MPI_Datatype type,
                   const struct shape *shape, uint64_t bytes)
{
    *unpack = (struct unpack){.receive = receive, .pieces = pieces, .count = count, .shape = *shape};
    int code = mpi.Type_contiguous(1, type, &unpack->type);
    if (code == MPI_SUCCESS)
        code = mpi.Type_commit(&unpack->type);
    if (code == MPI_SUCCESS) {
        unpack->bounce = bounce_acquire(bytes);
        if (unpack->bounce != NULL)
            return MPI_SUCCESS;
        mpi.Type_free(&unpack->type);
        code = MPI_ERR_NO_MEM;
    }
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
        code = convert_elements(false, address_plus(unpack->receive, piece->offset), piece->elements, unpack->type,
                                &unpack->shape, address_plus(unpack->bounce, (int64_t)at));
        at += piece->elements * unpack->shape.size;
    }
    bounce_release(unpack->bounce);
    unpack->bounce = NULL;
    free(unpack->pieces);
    unpack->pieces = NULL;
    mpi.Type_free(&unpack->type);
    return code;
}
