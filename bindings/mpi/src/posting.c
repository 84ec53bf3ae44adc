/*
 * posting.c: the path of every offloaded collective, for all collectives and all forms of MPI calls.
 *
 *   choose        offloaded, or passed through (choice.c)
 *   set_buffers   the buffers that this rank sends from and receives into
 *   prepare       the addresses of all blocks, packed if necessary (buffers.c)
 *   post          the call to liboutboard
 *   end           wait, or make the request that stands for the call (requests.c)
 *
 * A collective is a struct method; no other code depends on the collective.
 */
#include <string.h>

#include "posting.h"
#include "backlog.h"
#include "buffers.h"
#include "classes.h"
#include "errors.h"
#include "groups.h"
#include "methods.h"
#include "persistent.h"
#include "report.h"
#include "requests.h"
#include "shim.h"
#include "timings.h"
#include "trials.h"
#include "unpack.h"

void posting_init(struct posting *posting, const struct call *call, struct group *group, uint64_t bytes)
{
    memset(posting, 0, sizeof *posting);
    posting->call = call;
    posting->group = group;
    posting->bytes = bytes;
}

static int post_once(struct posting *posting)
{
    const struct method *method = method_of(posting->call->collective);
    int code = method->set_buffers(posting);
    if (code == MPI_SUCCESS)
        code = buffers_prepare(&posting->buffers, posting->group->ranks);
    if (code == MPI_SUCCESS)
        code = method->post(posting);
    buffers_free_lists(&posting->buffers);
    if (code != MPI_SUCCESS)
        unpack_finish(&posting->buffers.unpack, false);
    return code;
}

int posting_post(struct posting *posting, enum form form)
{
    double began = mpi.Wtime();
    int code = post_once(posting);
    bool packed = posting->buffers.unpack.bounce != NULL;
    if (error_is_outcome(code, OUTBOARD_ERR_RESOURCE))
        return code; /* the call is posted again when there is room */
    if (code != MPI_SUCCESS)
        report_count_failed();
    report_add_posted(posting->call->collective, form, posting->buffers.send.total, packed, mpi.Wtime() - began);
    return code;
}

/* Posts a blocking call, which may wait until something in flight has ended. */
static int post_when_room(struct posting *posting)
{
    backlog_flush(posting->group);
    unsigned ended = requests_ended();
    int code = posting_post(posting, BLOCKING);
    while (error_is_outcome(code, OUTBOARD_ERR_RESOURCE) && requests_wait_past(ended)) {
        ended = requests_ended();
        posting_init(posting, posting->call, posting->group, posting->bytes);
        code = posting_post(posting, BLOCKING);
    }
    if (error_is_outcome(code, OUTBOARD_ERR_RESOURCE))
        report_count_failed();
    return code;
}

static int raise_failure(const struct call *call, int code)
{
    return code == MPI_SUCCESS ? code : error_raise(call->comm, code);
}

static void record_time(const struct route *route)
{
    if (route->timed)
        class_record_time(route->class, OFFLOADED, &route->trial_turn, mpi.Wtime() - route->began, 0);
}

int offload(const struct call *call, const struct route *route)
{
    struct posting posting;
    posting_init(&posting, call, route->group, route->bytes);
    int code = post_when_room(&posting);
    if (code == MPI_SUCCESS) {
        double began = mpi.Wtime();
        code = request_wait_blocking(posting.posted, &posting.buffers.unpack);
        report_add_waiting(mpi.Wtime() - began);
        if (code != MPI_SUCCESS)
            report_count_failed();
    }
    record_time(route);
    return raise_failure(call, code);
}

int offload_nonblocking(const struct call *call, const struct route *route, MPI_Request *request)
{
    struct posting posting;
    posting_init(&posting, call, route->group, route->bytes);
    int code = request_make(&posting, request);
    if (code == MPI_SUCCESS && route->timed)
        timings_add(*request, route, mpi.Wtime() - route->began);
    return raise_failure(call, code);
}

int offload_persistent(const struct call *call, const struct route *route, MPI_Request *request)
{
    struct posting posting;
    posting_init(&posting, call, route->group, route->bytes);
    int code = method_of(call->collective)->set_buffers(&posting);
    if (code == MPI_SUCCESS)
        code = request_make_persistent(&posting, request);
    else
        group_drop(route->group);
    record_time(route);
    return raise_failure(call, code);
}
