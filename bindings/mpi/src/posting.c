/*
 * posting.c: the path of every offloaded collective, for all collectives and all forms of MPI calls.
 *
 *   choose      offloaded, or passed through (choice.c)
 *   arrange     the buffers that this rank sends from and receives into
 *   begin       their places in memory, packed if necessary (sides.c)
 *   hand over   to liboutboard
 *   end         wait, or make the request that stands for it (requests.c)
 *
 * A collective is a struct method; no other code depends on the collective.
 */
#include <string.h>

#include "shim.h"

#define METHOD(Name, lower, upper, method, ...) [COLLECTIVE_##lower] = &method,
static const struct method *const methods[COLLECTIVES_KNOWN] = {COLLECTIVES(METHOD)};
#undef METHOD

const struct method *method_of(enum collective collective)
{
    return methods[collective];
}

void posting_fill(struct posting *posting, const struct call *call, struct group *group, uint64_t bytes)
{
    memset(posting, 0, sizeof *posting);
    posting->call = call;
    posting->group = group;
    posting->bytes = bytes;
}

static int hand_over_now(struct posting *posting)
{
    const struct method *method = methods[posting->call->collective];
    int code = method->arrange(posting);
    if (code == MPI_SUCCESS)
        code = sides_begin(&posting->sides, posting->group->ranks);
    if (code == MPI_SUCCESS)
        code = method->hand_over(posting);
    sides_end(&posting->sides);
    if (code != MPI_SUCCESS)
        landing_finish(&posting->sides.landing, false);
    return code;
}

/* A service process takes a bounded number of requests of a rank, and of bytes if it cannot access the rank's memory.
 * MPI has no such bound, so a call beyond it waits until something in flight has ended. */
static int hand_over(struct posting *posting)
{
    unsigned ended = requests_ended();
    int code = hand_over_now(posting);
    while (error_stands_for(code, OUTBOARD_ERR_RESOURCE) && requests_wait_past(ended)) {
        ended = requests_ended();
        posting_fill(posting, posting->call, posting->group, posting->bytes);
        code = hand_over_now(posting);
    }
    return code;
}

int posting_post(struct posting *posting, enum form form)
{
    double began = PMPI_Wtime();
    int code = hand_over(posting);
    bool packed = posting->sides.landing.bounce != NULL;
    if (code != MPI_SUCCESS)
        report_failed();
    report_posted(posting->call->collective, form, posting->sides.send.total, packed, PMPI_Wtime() - began);
    return code;
}

static int raised(const struct call *call, int code)
{
    return code == MPI_SUCCESS ? code : error_raise(call->comm, code);
}

static void timed(const struct turn *turn)
{
    if (turn->timed)
        choice_timed(turn->class, OFFLOADED, &turn->of, PMPI_Wtime() - turn->began, 0);
}

int offload(const struct call *call, const struct turn *turn)
{
    struct posting posting;
    posting_fill(&posting, call, turn->group, turn->bytes);
    int code = posting_post(&posting, BLOCKING);
    if (code == MPI_SUCCESS) {
        double began = PMPI_Wtime();
        code = request_wait_blocking(posting.posted, &posting.sides.landing);
        report_waited(PMPI_Wtime() - began);
        if (code != MPI_SUCCESS)
            report_failed();
    }
    timed(turn);
    return raised(call, code);
}

int offload_nonblocking(const struct call *call, const struct turn *turn, MPI_Request *request)
{
    struct posting posting;
    posting_fill(&posting, call, turn->group, turn->bytes);
    int code = posting_post(&posting, NONBLOCKING);
    if (code == MPI_SUCCESS)
        code = request_make(&posting, request);
    if (code == MPI_SUCCESS && turn->timed)
        timings_enter(*request, turn, PMPI_Wtime() - turn->began);
    return raised(call, code);
}

int offload_persistent(const struct call *call, const struct turn *turn, MPI_Request *request)
{
    struct posting posting;
    posting_fill(&posting, call, turn->group, turn->bytes);
    int code = methods[call->collective]->arrange(&posting);
    if (code == MPI_SUCCESS)
        code = request_make_persistent(&posting, request);
    else
        group_drop(turn->group);
    timed(turn);
    return raised(call, code);
}
