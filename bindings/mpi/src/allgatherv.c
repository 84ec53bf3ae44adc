/*
 * allgatherv.c: MPI_Allgatherv and MPI_Iallgatherv handed to the service process.
 *
 * Whether a call is offloaded depends on the group and on the bytes of all blocks together, which MPI makes equal on all
 * ranks. Blocks of plain memory are received where they belong, others packed one after another and unpacked at the end.
 */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

struct posting {
    struct group *group;
    uint64_t total;
    struct shape shape; /* of what is received */
    MPI_Count extent;
    uint64_t *bytes;    /* by rank */
    uint64_t *offsets;
    const void *from;
    void *into;
    struct landing landing;
};

/* Arguments that MPI would refuse are left to MPI. */
static bool decide(const struct allgatherv *call, struct posting *posting)
{
    memset(posting, 0, sizeof *posting);
    posting->group = group_of(call->comm);
    if (posting->group == NULL || call->receive_counts == NULL || call->displacements == NULL ||
        call->receive_type == MPI_DATATYPE_NULL)
        return false;
    if (call->send != MPI_IN_PLACE && (call->send_count < 0 || call->send_type == MPI_DATATYPE_NULL))
        return false;
    MPI_Count size;
    if (PMPI_Type_size_x(call->receive_type, &size) != MPI_SUCCESS)
        return false;
    for (int rank = 0; rank < posting->group->ranks; rank++) {
        if (call->receive_counts[rank] < 0)
            return false;
        posting->total += (uint64_t)call->receive_counts[rank] * (uint64_t)size;
    }
    return outboard.group_offloads_allgatherv(posting->group->members, posting->total) == 1;
}

static int64_t place_of(const struct allgatherv *call, const struct posting *posting, int rank)
{
    return (int64_t)call->displacements[rank] * posting->extent;
}

/* Where the blocks arrive: where they belong, or packed in a bounce buffer with room for what is contributed. */
static int prepare_receive(const struct allgatherv *call, struct posting *posting)
{
    int ranks = posting->group->ranks;
    int64_t first = INT64_MAX;
    MPI_Count lb;
    int code = shape_of(call->receive_type, &posting->shape);
    if (code == MPI_SUCCESS)
        code = PMPI_Type_get_extent_x(call->receive_type, &lb, &posting->extent);
    if (code != MPI_SUCCESS)
        return code;
    uint64_t packed = 0;
    for (int rank = 0; rank < ranks; rank++) {
        posting->bytes[rank] = (uint64_t)call->receive_counts[rank] * posting->shape.size;
        posting->offsets[rank] = packed;
        packed += posting->bytes[rank];
        if (posting->bytes[rank] > 0 && place_of(call, posting, rank) < first)
            first = place_of(call, posting, rank);
    }
    if (posting->shape.stackable) {
        for (int rank = 0; rank < ranks; rank++)
            posting->offsets[rank] =
                posting->bytes[rank] > 0 ? (uint64_t)(place_of(call, posting, rank) - first) : 0;
        posting->into = first == INT64_MAX ? NULL : moved(call->receive, first + posting->shape.true_lb);
        return MPI_SUCCESS;
    }
    struct piece *pieces = calloc((size_t)ranks, sizeof *pieces);
    if (pieces == NULL)
        return MPI_ERR_NO_MEM;
    for (int rank = 0; rank < ranks; rank++)
        pieces[rank] = (struct piece){place_of(call, posting, rank), (uint64_t)call->receive_counts[rank]};
    code = landing_start_pieces(&posting->landing, call->receive, pieces, ranks, call->receive_type, &posting->shape,
                                packed);
    posting->into = posting->landing.bounce;
    return code;
}

/* This rank's contribution, as it lies or packed straight into its place among the received. */
static int prepare_send(const struct allgatherv *call, struct posting *posting)
{
    int me = posting->group->rank;
    void *own = moved(posting->into, (int64_t)posting->offsets[me]);
    posting->from = OUTBOARD_IN_PLACE;
    if (call->send == MPI_IN_PLACE) {
        if (posting->landing.bounce == NULL)
            return MPI_SUCCESS;
        return pack_elements(moved(call->receive, place_of(call, posting, me)), (uint64_t)call->receive_counts[me],
                             call->receive_type, &posting->shape, own);
    }
    struct shape shape;
    int code = shape_of(call->send_type, &shape);
    if (code != MPI_SUCCESS)
        return code;
    if ((uint64_t)call->send_count * shape.size != posting->bytes[me])
        return MPI_ERR_TRUNCATE; /* what this rank sends is not what it says it receives from itself */
    if (shape.stackable || (shape.solid && call->send_count == 1)) {
        posting->from = moved(call->send, shape.true_lb);
        return MPI_SUCCESS;
    }
    return pack_elements(call->send, (uint64_t)call->send_count, call->send_type, &shape, own);
}

static int hand_over(struct posting *posting, outboard_request **posted)
{
    static unsigned char nothing[1];
    int me = posting->group->rank;
    void *into = posting->into == NULL ? nothing : posting->into;
    const void *from = posting->bytes[me] == 0 ? nothing : posting->from;
    return outboard.iallgatherv(posting->group->members, from, into, posting->bytes, posting->offsets, posted);
}

/* Returns an MPI error code; after success `*posted` is in flight. */
static int post(const struct allgatherv *call, struct posting *posting, outboard_request **posted)
{
    size_t ranks = (size_t)posting->group->ranks;
    posting->bytes = calloc(2 * ranks, sizeof *posting->bytes);
    if (posting->bytes == NULL)
        return MPI_ERR_NO_MEM;
    posting->offsets = posting->bytes + ranks;
    int code = prepare_receive(call, posting);
    if (code == MPI_SUCCESS)
        code = prepare_send(call, posting);
    if (code == MPI_SUCCESS)
        code = outcome_code(hand_over(posting, posted));
    free(posting->bytes);
    if (code != MPI_SUCCESS) {
        landing_finish(&posting->landing, false);
        report_failed();
    }
    return code;
}

static struct posting_end begin(const struct allgatherv *call, struct posting *posting, enum counted kind, double began)
{
    struct posting_end end = {
        .kind = kind, .comm = call->comm, .group = posting->group, .landing = &posting->landing,
        .bytes = (uint64_t)call->receive_counts[posting->group->rank], .began = began,
    };
    end.code = post(call, posting, &end.posted);
    end.bytes *= posting->shape.size;
    return end;
}

bool iallgatherv_offload(const struct allgatherv *call, MPI_Request *request, int *outcome)
{
    struct posting posting;
    double began = PMPI_Wtime();
    if (!decide(call, &posting))
        return false;
    struct posting_end end = begin(call, &posting, COUNT_IALLGATHERV, began);
    *outcome = posting_end_nonblocking(&end, request);
    return true;
}

bool allgatherv_offload(const struct allgatherv *call, int *outcome)
{
    struct posting posting;
    double began = PMPI_Wtime();
    if (!decide(call, &posting))
        return false;
    struct posting_end end = begin(call, &posting, COUNT_ALLGATHERV, began);
    *outcome = posting_end_blocking(&end);
    return true;
}
