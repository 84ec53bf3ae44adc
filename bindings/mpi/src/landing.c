/*
 * landing.c: unpacks bytes that arrive packed into the program's buffer.
 */
#include <stdlib.h>

#include "shim.h"

int landing_start(struct landing *landing, void *receive, struct piece *pieces, int count, MPI_Datatype type,
                  const struct shape *shape, uint64_t bytes)
{
    *landing = (struct landing){.receive = receive, .pieces = pieces, .count = count, .shape = *shape};
    int code = PMPI_Type_contiguous(1, type, &landing->type);
    if (code == MPI_SUCCESS)
        code = PMPI_Type_commit(&landing->type);
    if (code == MPI_SUCCESS) {
        landing->bounce = bounce_take(bytes);
        if (landing->bounce != NULL)
            return MPI_SUCCESS;
        PMPI_Type_free(&landing->type);
        code = MPI_ERR_NO_MEM;
    }
    free(pieces);
    landing->pieces = NULL;
    return code;
}

int landing_finish(struct landing *landing, bool arrived)
{
    int code = MPI_SUCCESS;
    if (landing->bounce == NULL)
        return code;
    uint64_t at = 0;
    for (int i = 0; arrived && code == MPI_SUCCESS && i < landing->count; i++) {
        const struct piece *piece = &landing->pieces[i];
        code = convert_elements(false, moved(landing->receive, piece->offset), piece->elements, landing->type,
                                &landing->shape, moved(landing->bounce, (int64_t)at));
        at += piece->elements * landing->shape.size;
    }
    bounce_give(landing->bounce);
    landing->bounce = NULL;
    free(landing->pieces);
    landing->pieces = NULL;
    PMPI_Type_free(&landing->type);
    return code;
}
