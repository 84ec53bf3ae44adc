/*
 * allgather.c: MPI_Allgather and MPI_Iallgather handed to the service process.
 *
 * Whether a call is offloaded depends on the group and on the bytes each rank contributes, which MPI makes equal on
 * all ranks. How the bytes get from and into the program's datatypes is this rank's own affair.
 */
#include <string.h>

#include "shim.h"

struct posting {
    struct group *group;
    uint64_t bytes; /* of each rank */
    struct shape receive_shape;
    const void *from;
    void *into;
    struct landing landing;
};

/* Arguments that MPI would refuse are left to MPI. */
static bool decide(const struct allgather *call, struct posting *posting)
{
    posting->group = group_of(call->comm);
    if (posting->group == NULL || call->receive_count < 0 || call->receive_type == MPI_DATATYPE_NULL)
        return false;
    if (call->send != MPI_IN_PLACE && (call->send_count < 0 || call->send_type == MPI_DATATYPE_NULL))
        return false;
    MPI_Count size;
    if (PMPI_Type_size_x(call->receive_type, &size) != MPI_SUCCESS ||
        __builtin_mul_overflow((uint64_t)size, (uint64_t)call->receive_count, &posting->bytes))
        return false;
    return outboard.group_offloads_allgather(posting->group->members, posting->bytes) == 1;
}

/* The receive buffer as plain memory: itself, or a bounce buffer that is unpacked when all has arrived. */
static int prepare_receive(const struct allgather *call, struct posting *posting)
{
    int code = shape_of(call->receive_type, &posting->receive_shape);
    if (code != MPI_SUCCESS)
        return code;
    struct landing *landing = &posting->landing;
    memset(landing, 0, sizeof *landing);
    if (posting->receive_shape.stackable) {
        posting->into = moved(call->receive, posting->receive_shape.true_lb);
        return MPI_SUCCESS;
    }
    uint64_t elements = (uint64_t)call->receive_count * (uint64_t)posting->group->ranks;
    code = landing_start(landing, call->receive, elements, call->receive_type, &posting->receive_shape);
    posting->into = landing->bounce;
    return code;
}

/* This rank's contribution, as it lies or packed straight into its place among the received. */
static int prepare_send(const struct allgather *call, struct posting *posting)
{
    const struct landing *landing = &posting->landing;
    uint64_t place = (uint64_t)posting->group->rank;
    void *own = moved(posting->into, (int64_t)(place * posting->bytes));
    posting->from = OUTBOARD_IN_PLACE;
    if (call->send == MPI_IN_PLACE) {
        if (landing->bounce == NULL)
            return MPI_SUCCESS;
        MPI_Count lb, extent;
        int code = PMPI_Type_get_extent_x(call->receive_type, &lb, &extent);
        if (code != MPI_SUCCESS)
            return code;
        const void *lies = moved(call->receive, (int64_t)place * call->receive_count * extent);
        return pack_elements(lies, (uint64_t)call->receive_count, call->receive_type, &landing->shape, own);
    }
    struct shape shape;
    int code = shape_of(call->send_type, &shape);
    if (code != MPI_SUCCESS)
        return code;
    if ((uint64_t)call->send_count * shape.size != posting->bytes)
        return MPI_ERR_TRUNCATE; /* what this rank sends is not what it says it receives from each */
    if (shape.stackable || (shape.solid && call->send_count == 1)) {
        posting->from = moved(call->send, shape.true_lb);
        return MPI_SUCCESS;
    }
    return pack_elements(call->send, (uint64_t)call->send_count, call->send_type, &shape, own);
}

/* Returns an MPI error code; after success `*posted` is in flight. */
static int post(const struct allgather *call, struct posting *posting, outboard_request **posted)
{
    static unsigned char nothing[1];
    int code = prepare_receive(call, posting);
    if (code != MPI_SUCCESS)
        return code;
    code = prepare_send(call, posting);
    if (code == MPI_SUCCESS) {
        if (posting->bytes == 0) {
            posting->into = nothing;
            posting->from = OUTBOARD_IN_PLACE;
        }
        int outcome =
            outboard.iallgather(posting->group->members, posting->from, posting->into, posting->bytes, posted);
        code = outcome_code(outcome);
        if (code == MPI_SUCCESS)
            return code;
    }
    landing_finish(&posting->landing, false);
    report_failed();
    return code;
}

static struct posting_end begin(const struct allgather *call, struct posting *posting, enum counted kind, double began)
{
    struct posting_end end = {
        .kind = kind, .comm = call->comm, .group = posting->group, .landing = &posting->landing,
        .bytes = posting->bytes, .began = began,
    };
    end.code = post(call, posting, &end.posted);
    return end;
}

bool iallgather_offload(const struct allgather *call, MPI_Request *request, int *outcome)
{
    struct posting posting;
    double began = PMPI_Wtime();
    if (!decide(call, &posting))
        return false;
    struct posting_end end = begin(call, &posting, COUNT_IALLGATHER, began);
    *outcome = posting_end_nonblocking(&end, request);
    return true;
}

bool allgather_offload(const struct allgather *call, int *outcome)
{
    struct posting posting;
    double began = PMPI_Wtime();
    if (!decide(call, &posting))
        return false;
    struct posting_end end = begin(call, &posting, COUNT_ALLGATHER, began);
    *outcome = posting_end_blocking(&end);
    return true;
}
