/*
 * completion.c: a call of the MPI_Wait or MPI_Test family around the MPI function that carries it out.
 *
 * The call ends the offloaded requests of its list before the MPI library sees the list, and waits for them as far as
 * the function requires it. Failures of offloaded requests are reported by the call on the communicator of the request.
 *
 * Invariant: no MPI function waits for a request of the shim, since only the shim can end it.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "completion.h"
#include "errors.h"
#include "report.h"
#include "requests.h"
#include "timings.h"

/* The call of this thread; callbacks of MPI may nest calls. */
static _Thread_local struct completion *current;

/* Counts offloaded requests and requests of the MPI library. */
static void count_requests(int count, const MPI_Request *requests, int *ours, int *others)
{
    *ours = *others = 0;
    for (int i = 0; i < count; i++)
        if (requests[i] != MPI_REQUEST_NULL)
            ++*(op_of(requests[i]) != NULL ? ours : others);
}

/* Counts the shim's requests that a completion may complete now, and those that it still waits for. */
static void count_states(int count, const MPI_Request *requests, int *ended, int *open)
{
    *ended = *open = 0;
    for (int i = 0; i < count; i++) {
        const struct op *op = requests[i] == MPI_REQUEST_NULL ? NULL : op_of(requests[i]);
        if (op != NULL && atomic_load(&op->active))
            ++*(atomic_load(&op->ended) ? ended : open);
    }
}

/* The MPI library spins while it waits for its own requests. So does this function, which waits for the shim's. */
static void spin_until_ended(int count, const MPI_Request *requests)
{
    int ended, open;
    for (count_states(count, requests, &ended, &open); open > 0; count_states(count, requests, &ended, &open)) {
        sched_yield();
        requests_make_progress();
    }
}

bool completion_pends(struct completion *completion)
{
    int ended, open;
    if (!completion->mixed)
        return false;
    requests_collect();
    count_states(completion->count, completion->handles_before, &ended, &open);
    completion->mixed = ended == 0 && open > 0;
    sched_yield();
    return completion->mixed;
}

/* Prepares the arrays of a completion without failures. */
static bool init_completion(struct completion *completion, int count)
{
    completion->handles_before = completion->inline_before;
    completion->codes = completion->inline_codes;
    if (count > COMPLETION_INLINE) {
        completion->handles_before = malloc((size_t)count * (sizeof(MPI_Request) + sizeof(int)));
        if (completion->handles_before == NULL)
            return false;
        completion->codes = (int *)(completion->handles_before + count);
    }
    for (int i = 0; i < count; i++)
        completion->codes[i] = MPI_SUCCESS;
    completion->count = count;
    completion->failures = 0;
    completion->first = MPI_SUCCESS;
    completion->comm = MPI_COMM_NULL;
    return true;
}

bool completion_begin(struct completion *completion, int count, const MPI_Request *requests, enum wait_kind wait_kind)
{
    int ours = 0, others = 0;
    if (count <= 0 || requests == NULL)
        return false;
    if (requests_live())
        count_requests(count, requests, &ours, &others);
    bool timed = timings_contain(count, requests);
    if ((ours == 0 && !timed) || !init_completion(completion, count))
        return false;
    memcpy(completion->handles_before, requests, (size_t)count * sizeof *requests);
    completion->handles = requests;
    completion->timed = timed;
    completion->began = mpi.Wtime();
    completion->mixed = ours > 0 && others > 0 && wait_kind == WAIT_ANY;
    if (wait_kind == TEST)
        requests_collect();
    else if (ours > 0 && others == 0)
        requests_sleep_until(count, requests, wait_kind);
    else if (ours > 0 && wait_kind == WAIT_ALL)
        spin_until_ended(count, requests);
    completion->outer = current;
    current = completion;
    return true;
}

/* Keeps the failure of the request at `i` until the call ends. */
static void record_failure(struct completion *completion, const struct op *op, int i, int code)
{
    if (completion->failures++ == 0) {
        completion->first = code;
        completion->comm = op->comm;
    }
    completion->codes[i] = code;
}

/* Ends completed persistent requests, for which MPI has no query function. The call that completes a request reports
 * the failure, once. */
static void end_persistent(struct completion *completion, int done, const int *indices)
{
    for (int at = 0; at < done; at++) {
        int i = indices == NULL ? at : indices[at];
        if (i < 0 || i >= completion->count)
            continue; /* MPI_UNDEFINED */
        struct op *op =
            completion->handles_before[i] == MPI_REQUEST_NULL ? NULL : op_of(completion->handles_before[i]);
        if (op == NULL || op->persistent == NULL || !atomic_load(&op->ended))
            continue;
        atomic_store(&op->active, false);
        if (op_failure(op) == MPI_SUCCESS)
            continue;
        record_failure(completion, op, i, op_failure(op));
        op->outcome = OUTBOARD_OK;
        op->code = MPI_SUCCESS;
    }
}

static void completion_close(struct completion *completion, int done, const int *indices)
{
    current = completion->outer;
    end_persistent(completion, done, indices);
    double seconds = mpi.Wtime() - completion->began;
    report_add_waiting(seconds);
    for (int i = 0; completion->timed && i < completion->count; i++)
        if (completion->handles_before[i] != MPI_REQUEST_NULL && completion->handles[i] == MPI_REQUEST_NULL)
            timings_complete(completion->handles_before[i], seconds);
}

static void completion_release(struct completion *completion)
{
    if (completion->handles_before != completion->inline_before)
        free(completion->handles_before);
}

int completion_end_one(struct completion *completion, int outcome, int index, MPI_Status *status)
{
    completion_close(completion, 1, &index);
    completion_release(completion);
    if (completion->failures == 0)
        return outcome;
    if (status != MPI_STATUS_IGNORE)
        status->MPI_ERROR = completion->first;
    return error_raise(completion->comm, completion->first);
}

/* For several requests at once the result is MPI_ERR_IN_STATUS, and the error handler is called once. */
int completion_end_some(struct completion *completion, int outcome, int done, const int *indices,
                        MPI_Status *statuses)
{
    completion_close(completion, done, indices);
    for (int i = 0; completion->failures > 0 && statuses != MPI_STATUSES_IGNORE && i < done; i++) {
        int code = completion->codes[indices == NULL ? i : indices[i]];
        if (outcome == MPI_SUCCESS || code != MPI_SUCCESS)
            statuses[i].MPI_ERROR = code;
    }
    completion_release(completion);
    if (completion->failures == 0)
        return outcome;
    if (outcome == MPI_SUCCESS)
        error_raise(completion->comm, completion->first);
    return MPI_ERR_IN_STATUS;
}

bool completion_takes_failure(const struct op *op, int code)
{
    struct completion *call = current;
    for (int i = 0; call != NULL && i < call->count; i++) {
        if (call->handles_before[i] != op->request)
            continue;
        record_failure(call, op, i, code);
        return true;
    }
    return false;
}
