/*
 * broadcast.c: MPI_Bcast and MPI_Ibcast handed to the service process.
 *
 * Whether a call is offloaded depends on the group and on the bytes of the call, which MPI makes equal on all ranks.
 * How the bytes lie in the program's datatypes is this rank's own affair.
 */
#include <string.h>

#include "shim.h"

struct posting {
    struct group *group;
    uint64_t bytes;
    struct landing landing;
};

/* Arguments that MPI would refuse are left to MPI. */
static bool decide(const struct broadcast *call, struct posting *posting)
{
    posting->group = group_of(call->comm);
    if (posting->group == NULL || call->count < 0 || call->type == MPI_DATATYPE_NULL)
        return false;
    if (call->root < 0 || call->root >= posting->group->ranks)
        return false;
    MPI_Count size;
    if (PMPI_Type_size_x(call->type, &size) != MPI_SUCCESS ||
        __builtin_mul_overflow((uint64_t)size, (uint64_t)call->count, &posting->bytes))
        return false;
    return outboard.group_offloads_broadcast(posting->group->members, posting->bytes) == 1;
}

/* The buffer as plain memory: itself, or a bounce buffer, packed on the root, unpacked elsewhere when all has come. */
static int prepare(const struct broadcast *call, struct posting *posting, void **memory)
{
    struct shape shape;
    int code = shape_of(call->type, &shape);
    if (code != MPI_SUCCESS)
        return code;
    if (shape.stackable || (shape.solid && call->count == 1)) {
        *memory = moved(call->buffer, shape.true_lb);
        return MPI_SUCCESS;
    }
    struct landing *landing = &posting->landing;
    uint64_t elements = (uint64_t)call->count;
    code = landing_start(landing, call->buffer, elements, call->type, &shape);
    *memory = landing->bounce;
    if (code != MPI_SUCCESS || posting->group->rank != call->root)
        return code;
    /* Nothing is to be unpacked here. */
    landing->count = 0;
    return pack_elements(call->buffer, elements, call->type, &shape, landing->bounce);
}

/* Returns an MPI error code; after success `*posted` is in flight. */
static int post(const struct broadcast *call, struct posting *posting, outboard_request **posted)
{
    void *memory = NULL;
    memset(&posting->landing, 0, sizeof posting->landing);
    int code = prepare(call, posting, &memory);
    if (code == MPI_SUCCESS) {
        int outcome = outboard.ibroadcast(posting->group->members, memory, posting->bytes, (uint32_t)call->root, posted);
        code = outcome_code(outcome);
        if (code == MPI_SUCCESS)
            return code;
    }
    landing_finish(&posting->landing, false);
    report_failed();
    return code;
}

static struct posting_end begin(const struct broadcast *call, struct posting *posting, enum counted kind, double began)
{
    struct posting_end end = {
        .kind = kind, .comm = call->comm, .group = posting->group, .landing = &posting->landing,
        .bytes = posting->bytes, .began = began,
    };
    end.code = post(call, posting, &end.posted);
    return end;
}

bool ibroadcast_offload(const struct broadcast *call, MPI_Request *request, int *outcome)
{
    struct posting posting;
    double began = PMPI_Wtime();
    if (!decide(call, &posting))
        return false;
    struct posting_end end = begin(call, &posting, COUNT_IBCAST, began);
    *outcome = posting_end_nonblocking(&end, request);
    return true;
}

bool broadcast_offload(const struct broadcast *call, int *outcome)
{
    struct posting posting;
    double began = PMPI_Wtime();
    if (!decide(call, &posting))
        return false;
    struct posting_end end = begin(call, &posting, COUNT_BCAST, began);
    *outcome = posting_end_blocking(&end);
    return true;
}
