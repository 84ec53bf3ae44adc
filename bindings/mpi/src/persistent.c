/*
 * persistent.c: persistent collectives: an MPI request that posts the offloaded call whenever it is started.
 *
 * Generalized requests cannot be started again. So the MPI request is a persistent receive of an empty message, on a
 * communicator of this rank alone. The rank sends the message to itself when the collective has ended. So the functions
 * that wait and test need no special case.
 *
 * Such requests may be started in any order, another on each rank (MPI 4.1, 6.13). So each has its own group, with no
 * other calls that could be confused with its own.
 *
 *   state     entered by                              left by
 *   inactive  the _init call, or MPI's own completion MPI_Start, MPI_Request_free
 *   active    MPI_Start                               the message, sent when the collective has ended
 *
 * Invariant: an active request has exactly one message to come.
 */
#include <stdlib.h>
#include <string.h>

#include "requests.h"

struct persistent {
    struct call call;         /* posted whenever the request is started */
    struct group *group;      /* of this request alone */
    uint64_t bytes;           /* the bytes that all ranks know */
    MPI_Datatype types[2];    /* duplicates of the program's datatypes, or none */
    int tag;                  /* of the message that completes the request */
    atomic_int holders;       /* the request, and the collective in flight */
    int lists[];
};

static MPI_Comm alone = MPI_COMM_NULL;
static int most_tags;
static atomic_uint drawn;

int persistent_begin(void)
{
    int *limit, found = 0, code = PMPI_Comm_dup(MPI_COMM_SELF, &alone);
    if (code == MPI_SUCCESS)
        code = PMPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found);
    most_tags = found ? *limit : 32767;
    return code;
}

void persistent_end(void)
{
    if (alone != MPI_COMM_NULL)
        PMPI_Comm_free(&alone);
}

/* Whether an argument of the program is used here. On a rank that is not the root, or in place, some arguments are
 * ignored and may be anything. */
static bool counts(const struct side *side, const struct given *given)
{
    return side->blocks > 0 && side->given.type == given->type;
}

/* Duplicates a datatype that the program may free before the call is posted again. */
static int keep_type(struct given *given, MPI_Datatype *kept)
{
    int integers, addresses, types, combiner;
    int code = PMPI_Type_get_envelope(given->type, &integers, &addresses, &types, &combiner);
    if (code != MPI_SUCCESS || combiner == MPI_COMBINER_NAMED)
        return code;
    code = PMPI_Type_dup(given->type, kept);
    if (code == MPI_SUCCESS)
        given->type = *kept;
    return code;
}

/* Copies lists that the program may change before the call is posted again. */
static void keep_lists(struct given *given, int *room, int ranks)
{
    memcpy(room, given->counts, (size_t)ranks * sizeof *room);
    given->counts = room;
    if (given->displacements == NULL)
        return;
    memcpy(room + ranks, given->displacements, (size_t)ranks * sizeof *room);
    given->displacements = room + ranks;
}

static int keep(struct persistent *kept, const struct posting *posting)
{
    const struct sides *sides = &posting->sides;
    int ranks = posting->group->ranks;
    /* A reduction uses its lists on every rank; its datatypes are predefined. */
    bool reduces = kept->call.collective == COLLECTIVE_reduce_scatter;
    struct given *all[2] = {&kept->call.send, &kept->call.receive};
    int code = MPI_SUCCESS;
    for (int i = 0; i < 2 && code == MPI_SUCCESS; i++) {
        const struct side *send = &sides->send, *receive = &sides->receive;
        const int *list = all[i]->counts;
        if (list != NULL && (reduces || (send->blocks > 0 && send->given.counts == list) ||
                             (receive->blocks > 0 && receive->given.counts == list)))
            keep_lists(all[i], kept->lists + 2 * i * ranks, ranks);
        if (counts(send, all[i]) || counts(receive, all[i]))
            code = keep_type(all[i], &kept->types[i]);
    }
    return code;
}

static void let_go(struct persistent *kept)
{
    for (int i = 0; i < 2; i++)
        if (kept->types[i] != MPI_DATATYPE_NULL)
            PMPI_Type_free(&kept->types[i]);
    if (kept->group != NULL)
        group_drop(kept->group);
    free(kept);
}

/* The last holder frees the operation. */
static void release(struct op *op)
{
    if (atomic_fetch_sub(&op->again->holders, 1) > 1)
        return;
    let_go(op->again);
    free(op);
}

int request_make_persistent(const struct posting *posting, MPI_Request *request)
{
    int ranks = posting->group->ranks;
    struct op *op = calloc(1, sizeof *op);
    struct persistent *kept = malloc(sizeof *kept + 4 * (size_t)ranks * sizeof *kept->lists);
    if (op == NULL || kept == NULL) {
        free(op);
        free(kept);
        group_drop(posting->group);
        return MPI_ERR_NO_MEM;
    }
    *kept = (struct persistent){.call = *posting->call,
                                .group = posting->group,
                                .bytes = posting->bytes,
                                .types = {MPI_DATATYPE_NULL, MPI_DATATYPE_NULL}};
    atomic_init(&kept->holders, 1);
    kept->tag = (int)(atomic_fetch_add(&drawn, 1) % (unsigned)most_tags);
    *op = (struct op){.comm = posting->call->comm, .again = kept};
    atomic_init(&op->ended, true);
    int code = keep(kept, posting);
    if (code == MPI_SUCCESS)
        code = PMPI_Recv_init(NULL, 0, MPI_BYTE, 0, kept->tag, alone, &op->request);
    if (code != MPI_SUCCESS) {
        release(op);
        return code;
    }
    *request = op->request;
    op_remember(op);
    return MPI_SUCCESS;
}

static void complete(int tag)
{
    PMPI_Send(NULL, 0, MPI_BYTE, 0, tag, alone);
}

void persistent_ended(struct op *op)
{
    int tag = op->again->tag, code = op_failure(op);
    /* For a Fortran program no function of the shim runs between here and the call that completes the request. */
    if (code != MPI_SUCCESS && op->again->call.fortran)
        error_raise(MPI_COMM_WORLD, code);
    atomic_store(&op->ended, true);
    release(op);
    complete(tag);
}

void persistent_leave(struct op *op)
{
    group_drop(op->again->group);
    op->again->group = NULL;
}

bool request_start(MPI_Request *request, int *outcome)
{
    struct posting posting;
    struct op *op = op_of(*request);
    if (op == NULL || op->again == NULL)
        return false;
    MPI_Comm comm = op->comm;
    /* In MPI_Finalize, from a callback of MPI_COMM_SELF: the service process is gone, so the call fails. */
    int code = op->again->group == NULL ? MPI_ERR_REQUEST : PMPI_Start(request);
    if (code == MPI_SUCCESS) {
        posting_fill(&posting, &op->again->call, op->again->group, op->again->bytes);
        code = posting_post(&posting, PERSISTENT);
        if (code == MPI_SUCCESS) {
            atomic_fetch_add(&op->again->holders, 1);
            op_fly(op, &posting);
        } else {
            complete(op->again->tag);
        }
    }
    *outcome = code == MPI_SUCCESS ? code : error_raise(comm, code);
    return true;
}

void request_forget(MPI_Request request)
{
    timings_forget(request);
    struct op *op = op_of(request);
    if (op == NULL || op->again == NULL)
        return;
    op_forget(op);
    release(op);
}
