/*
 * alltoall.c: MPI_Alltoall(v) and MPI_Ialltoall(v) handed to the service process.
 *
 * Whether an alltoall is offloaded depends on the group and on the bytes of a block, which MPI makes equal on all ranks; the
 * blocks of an alltoallv are known to pairs of ranks alone, so all of them are offloaded or none. Blocks of plain memory are
 * handed over where they lie, others are packed one after another. In place means that what is sent is packed first, since
 * it is overwritten.
 */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

/* One side of the exchange as liboutboard wants it: bytes and offsets by rank, from `memory`. */
struct side {
    const struct exchanged *given;
    struct shape shape;
    MPI_Count extent;
    bool packed;
    uint64_t total;
    uint64_t *bytes;
    uint64_t *offsets;
    void *memory;
};

struct posting {
    struct group *group;
    bool even;
    bool in_place;
    uint64_t block; /* bytes, of an even one */
    struct side send;
    struct side receive;
    struct landing landing;
};

static uint64_t count_of(const struct exchanged *side, int rank)
{
    return (uint64_t)(side->counts == NULL ? side->count : side->counts[rank]);
}

static int64_t offset_of(const struct side *side, int rank)
{
    const struct exchanged *given = side->given;
    int64_t elements = given->counts == NULL ? (int64_t)rank * given->count : given->displacements[rank];
    return elements * side->extent;
}

/* What MPI would refuse. */
static bool unsound(const struct exchanged *side, bool even, int ranks)
{
    if (side->type == MPI_DATATYPE_NULL)
        return true;
    if (even)
        return side->count < 0;
    if (side->counts == NULL || side->displacements == NULL)
        return true;
    for (int rank = 0; rank < ranks; rank++)
        if (side->counts[rank] < 0)
            return true;
    return false;
}

/* Arguments that MPI would refuse are left to MPI. */
static bool decide(const struct alltoall *call, struct posting *posting)
{
    memset(posting, 0, sizeof *posting);
    posting->group = group_of(call->comm);
    if (posting->group == NULL)
        return false;
    int ranks = posting->group->ranks;
    posting->even = call->kind == COUNT_ALLTOALL || call->kind == COUNT_IALLTOALL;
    posting->in_place = call->send.buffer == MPI_IN_PLACE;
    if (unsound(&call->receive, posting->even, ranks) ||
        (!posting->in_place && unsound(&call->send, posting->even, ranks)))
        return false;
    posting->receive.given = &call->receive;
    posting->send.given = posting->in_place ? &call->receive : &call->send;
    if (!posting->even)
        return outboard.group_offloads_alltoallv(posting->group->members) == 1;
    MPI_Count size;
    if (PMPI_Type_size_x(call->receive.type, &size) != MPI_SUCCESS ||
        __builtin_mul_overflow((uint64_t)size, (uint64_t)call->receive.count, &posting->block))
        return false;
    return outboard.group_offloads_alltoall(posting->group->members, posting->block) == 1;
}

/* Bytes and offsets of one side. Returns an MPI error code. */
static int measure(struct side *side, int ranks, bool must_pack)
{
    int code = shape_of(side->given->type, &side->shape);
    MPI_Count lb;
    if (code == MPI_SUCCESS)
        code = PMPI_Type_get_extent_x(side->given->type, &lb, &side->extent);
    if (code != MPI_SUCCESS)
        return code;
    side->packed = must_pack || !side->shape.stackable;
    int64_t first = INT64_MAX;
    for (int rank = 0; rank < ranks; rank++) {
        side->bytes[rank] = count_of(side->given, rank) * side->shape.size;
        side->offsets[rank] = side->total;
        side->total += side->bytes[rank];
        if (side->bytes[rank] > 0 && offset_of(side, rank) < first)
            first = offset_of(side, rank);
    }
    if (side->packed || first == INT64_MAX)
        return MPI_SUCCESS;
    for (int rank = 0; rank < ranks; rank++)
        side->offsets[rank] = side->bytes[rank] > 0 ? (uint64_t)(offset_of(side, rank) - first) : 0;
    side->memory = moved(side->given->buffer, first + side->shape.true_lb);
    return MPI_SUCCESS;
}

/* Room for whatever is packed: what arrives, then what is sent. */
static int make_room(struct posting *posting)
{
    struct side *send = &posting->send, *receive = &posting->receive;
    int ranks = posting->group->ranks, count = receive->packed ? ranks : 0;
    if (!send->packed && !receive->packed)
        return MPI_SUCCESS;
    struct piece *pieces = calloc((size_t)ranks, sizeof *pieces);
    if (pieces == NULL)
        return MPI_ERR_NO_MEM;
    for (int rank = 0; rank < count; rank++)
        pieces[rank] = (struct piece){offset_of(receive, rank), count_of(receive->given, rank)};
    uint64_t arrives = receive->packed ? receive->total : 0, leaves = send->packed ? send->total : 0;
    int code = landing_start_pieces(&posting->landing, receive->given->buffer, pieces, count, receive->given->type,
                                    &receive->shape, arrives + leaves);
    if (code != MPI_SUCCESS)
        return code;
    if (receive->packed)
        receive->memory = posting->landing.bounce;
    if (!send->packed)
        return MPI_SUCCESS;
    send->memory = moved(posting->landing.bounce, (int64_t)arrives);
    for (int rank = 0; rank < ranks && code == MPI_SUCCESS; rank++)
        code = pack_elements(moved(send->given->buffer, offset_of(send, rank)), count_of(send->given, rank),
                             send->given->type, &send->shape, moved(send->memory, (int64_t)send->offsets[rank]));
    return code;
}

/* Returns an MPI error code. */
static int prepare(struct posting *posting)
{
    int ranks = posting->group->ranks, own = posting->group->rank;
    struct side *send = &posting->send, *receive = &posting->receive;
    int code = measure(receive, ranks, false);
    if (code == MPI_SUCCESS)
        code = measure(send, ranks, posting->in_place);
    if (code != MPI_SUCCESS)
        return code;
    if (send->bytes[own] != receive->bytes[own])
        return MPI_ERR_TRUNCATE; /* what this rank sends itself is not what it says it receives from itself */
    return make_room(posting);
}

static int hand_over(struct posting *posting, outboard_request **posted)
{
    static unsigned char nothing[1];
    struct side *send = &posting->send, *receive = &posting->receive;
    void *from = send->memory == NULL ? nothing : send->memory;
    void *into = receive->memory == NULL ? nothing : receive->memory;
    if (posting->even)
        return outboard.ialltoall(posting->group->members, from, into, posting->block, posted);
    return outboard.ialltoallv(posting->group->members, from, send->bytes, send->offsets, into, receive->bytes,
                               receive->offsets, posted);
}

/* Returns an MPI error code; after success `*posted` is in flight. */
static int post(struct posting *posting, outboard_request **posted)
{
    size_t ranks = (size_t)posting->group->ranks;
    uint64_t *lists = calloc(4 * ranks, sizeof *lists);
    if (lists == NULL)
        return MPI_ERR_NO_MEM;
    posting->send.bytes = lists;
    posting->send.offsets = lists + ranks;
    posting->receive.bytes = lists + 2 * ranks;
    posting->receive.offsets = lists + 3 * ranks;
    int code = prepare(posting);
    if (code == MPI_SUCCESS)
        code = outcome_code(hand_over(posting, posted));
    free(lists);
    if (code != MPI_SUCCESS) {
        landing_finish(&posting->landing, false);
        report_failed();
    }
    return code;
}

static struct posting_end begin(const struct alltoall *call, struct posting *posting, double began)
{
    struct posting_end end = {
        .kind = call->kind, .comm = call->comm, .group = posting->group, .landing = &posting->landing, .began = began,
    };
    end.code = post(posting, &end.posted);
    end.bytes = posting->send.total;
    return end;
}

bool ialltoall_offload(const struct alltoall *call, MPI_Request *request, int *outcome)
{
    struct posting posting;
    double began = PMPI_Wtime();
    if (!decide(call, &posting))
        return false;
    struct posting_end end = begin(call, &posting, began);
    *outcome = posting_end_nonblocking(&end, request);
    return true;
}

bool alltoall_offload(const struct alltoall *call, int *outcome)
{
    struct posting posting;
    double began = PMPI_Wtime();
    if (!decide(call, &posting))
        return false;
    struct posting_end end = begin(call, &posting, began);
    *outcome = posting_end_blocking(&end);
    return true;
}
