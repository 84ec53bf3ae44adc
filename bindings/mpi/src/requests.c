/*
 * requests.c: offloaded collectives in flight, and the MPI requests that stand for them.
 *
 * An MPI request is a generalized request. The functions that wait and test complete it before the MPI library sees
 * their requests, so no thread and no hook in the library is needed. Generalized requests cannot be persistent. So a
 * persistent request is a persistent receive of an empty message, which this rank sends to itself when the collective
 * has ended (persistent.c).
 *
 *   state      entered by                      left by
 *   in flight  op_put_in_flight                requests_collect: liboutboard reports that it ended
 *   claimed    a thread about to sleep on it   the same thread, awake again
 *   ended      requests_collect: unpacked      MPI frees the request (release_op), or it is started again
 *
 * Invariants: an operation stays on the list of operations in flight until the operation has ended. The request of
 * liboutboard belongs to one thread at a time: to the thread that claimed it, else to the thread that collects. `lock`
 * is never held during a call of MPI or liboutboard that may call back or block.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "requests.h"
#include "backlog.h"
#include "completion.h"
#include "errors.h"
#include "library.h"
#include "methods.h"
#include "persistent.h"
#include "report.h"
#include "unpack.h"

/* No sleep is longer, since messages to this rank's MPI library wait meanwhile. The kernel adds 50 us. */
#define SLEEP_US 150
#define SLEEPS_AT_ONCE 64
#define BUCKETS 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct op *in_flight;
static struct op *buckets[BUCKETS];
static atomic_int live_count;      /* operations whose MPI request exists */
static atomic_int in_flight_count; /* operations in flight */
static atomic_uint ended_count;    /* operations that have ended, modulo 2^32 */
static MPI_Comm self_comm;
static int neighbor, tag_probed; /* on MPI_COMM_WORLD */

static unsigned bucket_of(MPI_Request request)
{
    return ((uint32_t)(uintptr_t)request * 2654435761u >> 16) % BUCKETS;
}

/* With the lock held. */
static struct op *find_op(MPI_Request request)
{
    struct op *op = buckets[bucket_of(request)];
    while (op != NULL && op->request != request)
        op = op->next_in_bucket;
    return op;
}

/* ---- the generalized request ---- */

int op_failure(const struct op *op)
{
    return op->outcome != OUTBOARD_OK ? error_code(op->outcome, op->message) : op->code;
}

static int fill_status(void *extra, MPI_Status *status)
{
    struct op *op = extra;
    mpi.Status_set_elements(status, MPI_BYTE, 0);
    mpi.Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_ANY_SOURCE;
    status->MPI_TAG = MPI_ANY_TAG;
    status->MPI_ERROR = MPI_SUCCESS;
    int code = op_failure(op);
    /* The interposed function reports the failure on the right communicator; MPI would use MPI_COMM_WORLD. */
    if (code == MPI_SUCCESS || completion_takes_failure(op, code))
        return MPI_SUCCESS;
    status->MPI_ERROR = code;
    return code;
}

void op_unregister(struct op *op)
{
    pthread_mutex_lock(&lock);
    struct op **at = &buckets[bucket_of(op->request)];
    while (*at != op)
        at = &(*at)->next_in_bucket;
    *at = op->next_in_bucket;
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&live_count, 1);
}

void op_release(struct op *op)
{
    if (atomic_fetch_sub(&op->holders, 1) > 1)
        return;
    if (op->persistent != NULL)
        persistent_free(op->persistent);
    free(op);
}

/* MPI calls this function when it frees the request. For a request that the program frees early, MPICH calls it at
 * once, and Open MPI when the collective has ended. */
static int release_op(void *extra)
{
    struct op *op = extra;
    op_unregister(op);
    op_release(op);
    return MPI_SUCCESS;
}

/* A collective cannot be cancelled: a cancel has no effect. */
static int ignore_cancel(void *extra, int complete)
{
    (void)extra;
    (void)complete;
    return MPI_SUCCESS;
}

/* Tells MPI that the request is complete. */
static void complete(struct op *op)
{
    if (op->persistent != NULL) {
        persistent_complete(op);
    } else {
        /* In this order: MPICH must not see an incomplete request in a call that another thread makes on it. */
        mpi.Grequest_complete(op->request);
        atomic_store(&op->ended, true);
    }
}

void op_end_unposted(struct op *op, int code)
{
    op->outcome = OUTBOARD_OK;
    op->code = code;
    complete(op);
}

/* The operation is not on the list any more, so no other thread touches it until MPI is notified. */
static void end_op(struct op *op)
{
    op->code = unpack_finish(&op->unpack, op->outcome == OUTBOARD_OK);
    outboard.request_free(op->posted);
    op->posted = NULL;
    if (op->outcome != OUTBOARD_OK || op->code != MPI_SUCCESS)
        report_count_failed();
    complete(op);
    op_release(op);
    pthread_mutex_lock(&lock);
    atomic_fetch_sub(&in_flight_count, 1);
    atomic_fetch_add(&ended_count, 1);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Removes ended operations from the list. */
static struct op *collect_ended(void)
{
    struct op *ended = NULL, **at = &in_flight;
    while (*at != NULL) {
        struct op *op = *at;
        int done = 0;
        int outcome = op->claimed ? OUTBOARD_OK : outboard.test(op->posted, &done);
        if (done == 0 && outcome == OUTBOARD_OK) {
            at = &op->next_in_flight;
            continue;
        }
        op->outcome = outcome;
        if (outcome != OUTBOARD_OK)
            library_error_message(outcome, op->message, sizeof op->message);
        *at = op->next_in_flight;
        op->in_flight = false;
        op->next_in_flight = ended;
        ended = op;
    }
    return ended;
}

static void end_collected(void)
{
    if (requests_in_flight() == 0 || pthread_mutex_trylock(&lock) != 0)
        return;
    struct op *ended = collect_ended();
    pthread_mutex_unlock(&lock);
    while (ended != NULL) {
        struct op *next = ended->next_in_flight;
        end_op(ended);
        ended = next;
    }
}

void requests_collect(void)
{
    end_collected();
    backlog_post();
}

/* A probe makes every MPI library look after its own messages, and takes none. MPICH does not look on a communicator of
 * one rank. */
void requests_make_progress(void)
{
    for (int i = 0, found; i < PROBES_FOR_PROGRESS; i++)
        mpi.Iprobe(neighbor, tag_probed, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    requests_collect();
}

/* ---- posting ---- */

void op_register(struct op *op)
{
    atomic_fetch_add(&live_count, 1);
    pthread_mutex_lock(&lock);
    unsigned bucket = bucket_of(op->request);
    op->next_in_bucket = buckets[bucket];
    buckets[bucket] = op;
    pthread_mutex_unlock(&lock);
}

struct op *op_of(MPI_Request request)
{
    if (atomic_load_explicit(&live_count, memory_order_relaxed) == 0)
        return NULL;
    pthread_mutex_lock(&lock);
    struct op *op = find_op(request);
    pthread_mutex_unlock(&lock);
    return op;
}

void op_keep(struct op *op)
{
    atomic_fetch_add(&op->holders, 1);
    atomic_store(&op->ended, false);
    atomic_store(&op->active, true);
}

bool requests_live(void)
{
    return atomic_load_explicit(&live_count, memory_order_relaxed) > 0;
}

int requests_in_flight(void)
{
    return atomic_load_explicit(&in_flight_count, memory_order_relaxed);
}

void op_put_in_flight(struct op *op, const struct posting *posting)
{
    op->posted = posting->posted;
    op->unpack = posting->buffers.unpack;
    op->outcome = OUTBOARD_OK;
    op->code = MPI_SUCCESS;
    op_keep(op);
    atomic_fetch_add(&in_flight_count, 1);
    pthread_mutex_lock(&lock);
    op->in_flight = true;
    op->next_in_flight = NULL;
    struct op **end = &in_flight;
    while (*end != NULL)
        end = &(*end)->next_in_flight;
    *end = op;
    pthread_mutex_unlock(&lock);
}

int request_make(struct posting *posting, MPI_Request *request)
{
    struct op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return MPI_ERR_NO_MEM;
    op->comm = posting->call->comm;
    int code = mpi.Grequest_start(fill_status, release_op, ignore_cancel, op, &op->request);
    if (code != MPI_SUCCESS) {
        free(op);
        return code;
    }
    atomic_init(&op->holders, 1);
    op_register(op);
    *request = op->request;
    code = backlog_post_or_keep(op, posting, NONBLOCKING);
    if (code != MPI_SUCCESS) {
        mpi.Grequest_complete(op->request);
        mpi.Request_free(request);
    }
    return code;
}

/* ---- sleeping ---- */

int request_wait_blocking(outboard_request *posted, struct unpack *unpack)
{
    int done = 0, outcome = OUTBOARD_OK;
    while (done == 0 && outcome == OUTBOARD_OK) {
        requests_make_progress();
        outboard.wait_some_us(&posted, 1, SLEEP_US);
        outcome = outboard.test(posted, &done);
    }
    char message[MPI_MAX_ERROR_STRING];
    if (outcome != OUTBOARD_OK)
        library_error_message(outcome, message, sizeof message);
    outboard.request_free(posted);
    int code = unpack_finish(unpack, outcome == OUTBOARD_OK);
    return outcome == OUTBOARD_OK ? code : error_code(outcome, message);
}

/* Sleeps once on operations just claimed, then releases them. */
static void sleep_claimed(struct op **claimed, int count)
{
    outboard_request *posted[SLEEPS_AT_ONCE] = {NULL};
    for (int i = 0; i < count; i++)
        posted[i] = claimed[i]->posted;
    outboard.wait_some_us(posted, (size_t)count, SLEEP_US);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++)
        claimed[i]->claimed = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* With the lock held. */
static bool claim(struct op *op, struct op **claimed, int *count)
{
    if (*count == SLEEPS_AT_ONCE || !op->in_flight || op->claimed)
        return false;
    op->claimed = true;
    claimed[(*count)++] = op;
    return true;
}

/* Lets another thread that claimed or is ending an operation go on; with the lock held. */
static void wait_for_change(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += SLEEP_US * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&changed, &lock, &until);
}

/* Sleeps once on operations in flight on the communicator, or on all (MPI_COMM_NULL); false if there are none. */
static bool sleep_on(MPI_Comm comm)
{
    struct op *claimed[SLEEPS_AT_ONCE];
    int count = 0, listed = 0;
    bool remaining = false;
    requests_make_progress();
    pthread_mutex_lock(&lock);
    for (struct op *op = in_flight; op != NULL; op = op->next_in_flight, listed++) {
        if (comm != MPI_COMM_NULL && op->comm != comm)
            continue;
        remaining = true;
        claim(op, claimed, &count);
    }
    remaining = remaining || atomic_load(&in_flight_count) > listed; /* another thread is ending one */
    if (remaining && count == 0)
        wait_for_change();
    pthread_mutex_unlock(&lock);
    if (count > 0)
        sleep_claimed(claimed, count);
    return remaining;
}

/* MPI calls this file's callers back while it holds its own lock, so without collectives in flight they call no MPI. */
static bool is_in_flight_on(MPI_Comm comm)
{
    bool found = false;
    int listed = 0;
    pthread_mutex_lock(&lock);
    for (struct op *op = in_flight; op != NULL; op = op->next_in_flight, listed++)
        found = found || comm == MPI_COMM_NULL || op->comm == comm;
    found = found || atomic_load(&in_flight_count) > listed; /* another thread is ending one */
    pthread_mutex_unlock(&lock);
    return found;
}

unsigned requests_ended(void)
{
    return atomic_load(&ended_count);
}

bool requests_wait_past(unsigned ended)
{
    bool remaining = true;
    while (remaining && atomic_load(&ended_count) == ended)
        remaining = sleep_on(MPI_COMM_NULL);
    return atomic_load(&ended_count) != ended;
}

void requests_drain(MPI_Comm comm)
{
    if (atomic_load(&live_count) == 0 && atomic_load(&in_flight_count) == 0)
        return;
    while (is_in_flight_on(comm) || backlog_holds(comm))
        sleep_on(comm);
    pthread_mutex_lock(&lock);
    for (int bucket = 0; bucket < BUCKETS; bucket++)
        for (struct op *op = buckets[bucket]; op != NULL; op = op->next_in_bucket)
            if (comm == MPI_COMM_NULL || op->comm == comm)
                op->comm = MPI_COMM_NULL;
    pthread_mutex_unlock(&lock);
}

/* True if the MPI function will not have to wait; else claims operations to sleep on. With the lock held. */
static bool claim_unless_done(int count, const MPI_Request *requests, enum wait_kind wait_kind, struct op **claimed,
                              int *claims)
{
    int ended = 0, open = 0;
    for (int i = 0; i < count; i++) {
        struct op *op = requests[i] == MPI_REQUEST_NULL ? NULL : find_op(requests[i]);
        if (op == NULL || !atomic_load(&op->active))
            continue;
        if (atomic_load(&op->ended)) {
            ended++;
        } else {
            open++;
            claim(op, claimed, claims);
        }
    }
    bool satisfied = open == 0 || (wait_kind == WAIT_ANY && ended > 0);
    for (int i = 0; satisfied && i < *claims; i++)
        claimed[i]->claimed = false;
    return satisfied;
}

void requests_sleep_until(int count, const MPI_Request *requests, enum wait_kind wait_kind)
{
    for (;;) {
        struct op *claimed[SLEEPS_AT_ONCE];
        int claims = 0;
        requests_make_progress();
        pthread_mutex_lock(&lock);
        bool satisfied = claim_unless_done(count, requests, wait_kind, claimed, &claims);
        if (!satisfied && claims == 0)
            wait_for_change();
        pthread_mutex_unlock(&lock);
        if (satisfied)
            return;
        if (claims > 0)
            sleep_claimed(claimed, claims);
    }
}

bool request_refuse_cancel(MPI_Request request)
{
    struct op *op = op_of(request);
    if (op != NULL)
        error_raise(op->comm, MPI_ERR_REQUEST);
    return op != NULL;
}

MPI_Comm requests_self(void)
{
    return self_comm;
}

int requests_start(void)
{
    int rank, ranks;
    mpi.Comm_rank(MPI_COMM_WORLD, &rank);
    mpi.Comm_size(MPI_COMM_WORLD, &ranks);
    neighbor = (rank + 1) % ranks;
    int code = mpi.Comm_dup(MPI_COMM_SELF, &self_comm);
    return code == MPI_SUCCESS ? persistent_start(&tag_probed) : code;
}

void requests_stop(void)
{
    for (int bucket = 0; bucket < BUCKETS; bucket++)
        for (struct op *op = buckets[bucket]; op != NULL; op = op->next_in_bucket)
            if (op->persistent != NULL)
                persistent_drop_group(op);
    mpi.Comm_free(&self_comm);
}
