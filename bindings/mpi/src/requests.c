/*
 * requests.c: offloaded collectives in flight, and the MPI requests that stand for them.
 *
 * An MPI request is a generalized request. It is completed from a hook in MPI's own progress engine, so every function
 * that waits or tests in MPI completes it, alone or mixed with requests of other kinds, and there is no thread.
 *
 *   state      entered by                      left by
 *   in flight  request_make                    hook: liboutboard says it ended
 *   claimed    a thread about to sleep on it   the same thread, awake again
 *   ended      hook: bytes landed, MPI told    MPI frees the request (release_op)
 *
 * Invariants: an operation is on the list of those in flight until it has ended; liboutboard's request belongs to one
 * thread at a time: to whoever claimed it, else to the hook; `lock` is never held while MPI or liboutboard is called
 * with anything that may call back or block.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shim.h"

/* MPI's progress is called this often between two sleeps; it looks at sockets at every eighth call. */
#define PROGRESS_CALLS 8
/* A sleep is that long at most: what other ranks ask of this one's MPI library waits no longer. */
#define LONGEST_SLEEP_MS 4
#define SLEEPS_AT_ONCE 64
#define BUCKETS 256

struct op {
    MPI_Request request;
    outboard_request *posted;
    struct group *group;
    MPI_Comm comm; /* MPI_COMM_NULL once the communicator is gone */
    struct landing landing;
    bool claimed;
    bool in_flight;
    atomic_bool ended;
    int outcome; /* of liboutboard */
    int code;    /* of MPI, when moving the bytes failed */
    char sentence[MPI_MAX_ERROR_STRING];
    struct op *next_in_flight;
    struct op *next_in_bucket;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct op *in_flight;
static struct op *buckets[BUCKETS];
static atomic_int live;    /* operations whose MPI request exists */
static atomic_int flying;  /* operations in flight */
static _Thread_local struct completion *current;

static unsigned bucket_of(MPI_Request request)
{
    return (unsigned)(((uintptr_t)request >> 4) * 2654435761u >> 16) % BUCKETS;
}

/* With the lock held. */
static struct op *op_of(MPI_Request request)
{
    struct op *op = buckets[bucket_of(request)];
    while (op != NULL && op->request != request)
        op = op->next_in_bucket;
    return op;
}

int landing_start_pieces(struct landing *landing, void *receive, struct piece *pieces, int count, MPI_Datatype type,
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

int landing_start(struct landing *landing, void *receive, uint64_t elements, MPI_Datatype type,
                  const struct shape *shape)
{
    int code = landing_start_pieces(landing, receive, NULL, 1, type, shape, elements * shape->size);
    landing->whole.elements = elements;
    return code;
}

int landing_finish(struct landing *landing, bool arrived)
{
    int code = MPI_SUCCESS;
    if (landing->bounce == NULL)
        return code;
    const struct piece *pieces = landing->pieces == NULL ? &landing->whole : landing->pieces;
    uint64_t at = 0;
    for (int i = 0; arrived && code == MPI_SUCCESS && i < landing->count; i++) {
        code = unpack_elements(moved(landing->bounce, (int64_t)at), pieces[i].elements, landing->type, &landing->shape,
                               moved(landing->receive, pieces[i].offset));
        at += pieces[i].elements * landing->shape.size;
    }
    bounce_give(landing->bounce);
    landing->bounce = NULL;
    free(landing->pieces);
    landing->pieces = NULL;
    PMPI_Type_free(&landing->type);
    return code;
}

/* ---- the generalized request ---- */

static int fill_status(void *extra, MPI_Status *status)
{
    struct op *op = extra;
    PMPI_Status_set_elements(status, MPI_BYTE, 0);
    PMPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_ANY_SOURCE;
    status->MPI_TAG = MPI_ANY_TAG;
    status->MPI_ERROR = MPI_SUCCESS;
    int code = op->outcome != OUTBOARD_OK ? error_code(op->outcome, op->sentence) : op->code;
    if (code == MPI_SUCCESS)
        return MPI_SUCCESS;
    struct completion *call = current;
    for (int i = 0; call != NULL && i < call->count; i++) {
        if (call->before[i] != op->request)
            continue;
        /* The interposed function reports it on the right communicator; MPI would take MPI_COMM_WORLD's handler. */
        if (call->failures++ == 0) {
            call->first = code;
            call->comm = op->comm;
        }
        call->codes[i] = code;
        return MPI_SUCCESS;
    }
    status->MPI_ERROR = code;
    return code;
}

static int release_op(void *extra)
{
    struct op *op = extra;
    pthread_mutex_lock(&lock);
    struct op **at = &buckets[bucket_of(op->request)];
    while (*at != op)
        at = &(*at)->next_in_bucket;
    *at = op->next_in_bucket;
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&live, 1);
    free(op);
    return MPI_SUCCESS;
}

/* A collective cannot be cancelled: it completes as if nobody had asked. */
static int ignore_cancel(void *extra, int complete)
{
    (void)extra;
    (void)complete;
    return MPI_SUCCESS;
}

/* Not in the list any more, so nobody else touches it until MPI is told. */
static void end_op(struct op *op)
{
    op->code = landing_finish(&op->landing, op->outcome == OUTBOARD_OK);
    outboard.request_free(op->posted);
    op->posted = NULL;
    if (op->outcome != OUTBOARD_OK || op->code != MPI_SUCCESS)
        report_failed();
    MPI_Request request = op->request;
    atomic_store(&op->ended, true);
    PMPI_Grequest_complete(request); /* frees `op` if the program freed the request */
    pthread_mutex_lock(&lock);
    atomic_fetch_sub(&flying, 1);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Takes those that have ended out of the list. */
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
            library_sentence(outcome, op->sentence, sizeof op->sentence);
        *at = op->next_in_flight;
        op->in_flight = false;
        op->next_in_flight = ended;
        ended = op;
    }
    return ended;
}

/* Called by MPI whenever it makes progress, from any thread. */
static int hook(void)
{
    if (atomic_load_explicit(&flying, memory_order_relaxed) == 0 || pthread_mutex_trylock(&lock) != 0)
        return 0;
    struct op *ended = collect_ended();
    pthread_mutex_unlock(&lock);
    int count = 0;
    while (ended != NULL) {
        struct op *next = ended->next_in_flight;
        end_op(ended);
        ended = next;
        count++;
    }
    return count;
}

static void progress(void)
{
    for (int i = 0; i < PROGRESS_CALLS; i++)
        engine.progress();
}

/* ---- posting ---- */

/* A collective whose MPI request could not be made must still end before its buffers go. */
static int abandon(outboard_request *posted, const struct landing *landing, int code)
{
    struct landing unused = *landing;
    outboard.wait(posted, -1, NULL);
    outboard.request_free(posted);
    landing_finish(&unused, false);
    return code;
}

int request_make(MPI_Comm comm, struct group *group, outboard_request *posted, const struct landing *landing,
                 MPI_Request *request)
{
    struct op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return abandon(posted, landing, MPI_ERR_NO_MEM);
    op->posted = posted;
    op->group = group;
    op->comm = comm;
    op->landing = *landing;
    atomic_init(&op->ended, false);
    int code = PMPI_Grequest_start(fill_status, release_op, ignore_cancel, op, &op->request);
    if (code != MPI_SUCCESS) {
        free(op);
        return abandon(posted, landing, code);
    }
    *request = op->request;
    atomic_fetch_add(&live, 1);
    atomic_fetch_add(&flying, 1);
    pthread_mutex_lock(&lock);
    unsigned bucket = bucket_of(op->request);
    op->next_in_bucket = buckets[bucket];
    buckets[bucket] = op;
    op->in_flight = true;
    struct op **end = &in_flight;
    while (*end != NULL)
        end = &(*end)->next_in_flight;
    *end = op;
    pthread_mutex_unlock(&lock);
    return MPI_SUCCESS;
}

/* ---- sleeping ---- */

/* 1, 1, 2, 2, 4, 4, ... milliseconds. */
static int sleep_ms(int sleeps)
{
    int ms = sleeps / 2 < 8 ? 1 << (sleeps / 2) : LONGEST_SLEEP_MS;
    return ms < LONGEST_SLEEP_MS ? ms : LONGEST_SLEEP_MS;
}

int request_wait_blocking(outboard_request *posted, struct landing *landing)
{
    int done = 0, outcome = OUTBOARD_OK;
    for (int sleeps = 0; done == 0 && outcome == OUTBOARD_OK; sleeps += sleeps < 16) {
        progress();
        outcome = outboard.wait(posted, sleep_ms(sleeps), &done);
    }
    char sentence[MPI_MAX_ERROR_STRING];
    if (outcome != OUTBOARD_OK)
        library_sentence(outcome, sentence, sizeof sentence);
    outboard.request_free(posted);
    int code = landing_finish(landing, outcome == OUTBOARD_OK);
    return outcome == OUTBOARD_OK ? code : error_code(outcome, sentence);
}

int posting_end_nonblocking(const struct posting_end *end, MPI_Request *request)
{
    bool packed = end->landing->bounce != NULL;
    int code = end->code;
    if (code == MPI_SUCCESS)
        code = request_make(end->comm, end->group, end->posted, end->landing, request);
    report_posted(end->kind, end->bytes, packed, PMPI_Wtime() - end->began);
    return code == MPI_SUCCESS ? code : error_raise(end->comm, code);
}

int posting_end_blocking(const struct posting_end *end)
{
    int code = end->code;
    double posted = PMPI_Wtime();
    report_posted(end->kind, end->bytes, end->landing->bounce != NULL, posted - end->began);
    if (code == MPI_SUCCESS) {
        code = request_wait_blocking(end->posted, end->landing);
        report_waited(PMPI_Wtime() - posted);
        if (code != MPI_SUCCESS)
            report_failed();
    }
    return code == MPI_SUCCESS ? code : error_raise(end->comm, code);
}

/* Sleeps once on operations just claimed, then gives them back. */
static void sleep_claimed(struct op **claimed, int count, int ms)
{
    outboard_request *posted[SLEEPS_AT_ONCE] = {NULL};
    for (int i = 0; i < count; i++)
        posted[i] = claimed[i]->posted;
    outboard.wait_some(posted, (size_t)count, ms);
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
static void wait_for_change(int ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&changed, &lock, &until);
}

void requests_drain(const struct group *group)
{
    for (int sleeps = 0;; sleeps += sleeps < 16) {
        struct op *claimed[SLEEPS_AT_ONCE];
        int count = 0;
        progress();
        pthread_mutex_lock(&lock);
        bool left = false;
        int listed = 0;
        for (struct op *op = in_flight; op != NULL; op = op->next_in_flight, listed++) {
            if (group != NULL && op->group != group)
                continue;
            left = true;
            claim(op, claimed, &count);
        }
        left = left || atomic_load(&flying) > listed; /* another thread is ending one */
        if (left && count == 0)
            wait_for_change(sleep_ms(sleeps));
        pthread_mutex_unlock(&lock);
        if (count > 0)
            sleep_claimed(claimed, count, sleep_ms(sleeps));
        if (!left)
            break;
    }
    pthread_mutex_lock(&lock);
    for (int bucket = 0; bucket < BUCKETS; bucket++)
        for (struct op *op = buckets[bucket]; op != NULL; op = op->next_in_bucket)
            if (group == NULL || op->group == group)
                op->comm = MPI_COMM_NULL;
    pthread_mutex_unlock(&lock);
}

/* How many of the requests are offloaded and how many another's; with the lock held. */
static void sort_requests(int count, const MPI_Request *requests, int *ours, int *others)
{
    *ours = *others = 0;
    for (int i = 0; i < count; i++) {
        if (requests[i] == MPI_REQUEST_NULL)
            continue;
        if (op_of(requests[i]) != NULL)
            ++*ours;
        else
            ++*others;
    }
}

/* True when the MPI function will find what it waits for; else claims what to sleep on. With the lock held. */
static bool look(int count, const MPI_Request *requests, enum patience patience, struct op **claimed, int *claims)
{
    int ended = 0, open = 0;
    for (int i = 0; i < count; i++) {
        struct op *op = requests[i] == MPI_REQUEST_NULL ? NULL : op_of(requests[i]);
        if (op == NULL)
            continue;
        if (atomic_load(&op->ended)) {
            ended++;
        } else {
            open++;
            claim(op, claimed, claims);
        }
    }
    bool enough = open == 0 || (patience == WAIT_ANY && ended > 0);
    for (int i = 0; enough && i < *claims; i++)
        claimed[i]->claimed = false;
    return enough;
}

static void sleep_until(int count, const MPI_Request *requests, enum patience patience)
{
    for (int sleeps = 0;; sleeps += sleeps < 16) {
        struct op *claimed[SLEEPS_AT_ONCE];
        int claims = 0;
        progress();
        pthread_mutex_lock(&lock);
        bool enough = look(count, requests, patience, claimed, &claims);
        if (!enough && claims == 0)
            wait_for_change(sleep_ms(sleeps));
        pthread_mutex_unlock(&lock);
        if (enough)
            return;
        if (claims > 0)
            sleep_claimed(claimed, claims, sleep_ms(sleeps));
    }
}

/* ---- MPI_Wait and MPI_Test ---- */

bool completion_begin(struct completion *completion, int count, const MPI_Request *requests, enum patience patience)
{
    if (atomic_load_explicit(&live, memory_order_relaxed) == 0 || count <= 0 || requests == NULL)
        return false;
    int ours, others;
    pthread_mutex_lock(&lock);
    sort_requests(count, requests, &ours, &others);
    pthread_mutex_unlock(&lock);
    if (ours == 0)
        return false;
    completion->before = completion->few_before;
    completion->codes = completion->few_codes;
    if (count > COMPLETION_INLINE) {
        completion->before = malloc((size_t)count * (sizeof(MPI_Request) + sizeof(int)));
        if (completion->before == NULL)
            return false;
        completion->codes = (int *)(completion->before + count);
    }
    memcpy(completion->before, requests, (size_t)count * sizeof *requests);
    for (int i = 0; i < count; i++)
        completion->codes[i] = MPI_SUCCESS;
    completion->count = count;
    completion->failures = 0;
    completion->first = MPI_SUCCESS;
    completion->comm = MPI_COMM_NULL;
    completion->began = PMPI_Wtime();
    if (patience != TEST && others == 0)
        sleep_until(count, requests, patience);
    completion->outer = current;
    current = completion;
    return true;
}

static void completion_close(struct completion *completion)
{
    current = completion->outer;
    report_waited(PMPI_Wtime() - completion->began);
}

static void completion_release(struct completion *completion)
{
    if (completion->before != completion->few_before)
        free(completion->before);
}

int completion_end_one(struct completion *completion, int outcome, MPI_Status *status)
{
    completion_close(completion);
    completion_release(completion);
    if (completion->failures == 0)
        return outcome;
    if (status != MPI_STATUS_IGNORE)
        status->MPI_ERROR = completion->first;
    return error_raise(completion->comm, completion->first);
}

/* Several requests at once: MPI_ERR_IN_STATUS, the handler called once. */
static int raise_in_status(struct completion *completion, int outcome)
{
    completion_release(completion);
    if (completion->failures == 0)
        return outcome;
    if (outcome == MPI_SUCCESS)
        error_raise(completion->comm, completion->first);
    return MPI_ERR_IN_STATUS;
}

int completion_end_all(struct completion *completion, int outcome, MPI_Status *statuses)
{
    completion_close(completion);
    for (int i = 0; completion->failures > 0 && statuses != MPI_STATUSES_IGNORE && i < completion->count; i++)
        if (outcome == MPI_SUCCESS || completion->codes[i] != MPI_SUCCESS)
            statuses[i].MPI_ERROR = completion->codes[i];
    return raise_in_status(completion, outcome);
}

int completion_end_some(struct completion *completion, int outcome, int count, const int *indices,
                        MPI_Status *statuses)
{
    completion_close(completion);
    for (int i = 0; completion->failures > 0 && statuses != MPI_STATUSES_IGNORE && i < count; i++)
        if (outcome == MPI_SUCCESS || completion->codes[indices[i]] != MPI_SUCCESS)
            statuses[i].MPI_ERROR = completion->codes[indices[i]];
    return raise_in_status(completion, outcome);
}

void completion_sleep(int count, const MPI_Fint *requests, enum patience patience)
{
    if (atomic_load_explicit(&live, memory_order_relaxed) == 0 || count <= 0)
        return;
    MPI_Request few[COMPLETION_INLINE], *handles = few;
    if (count > COMPLETION_INLINE && (handles = malloc((size_t)count * sizeof *handles)) == NULL)
        return;
    for (int i = 0; i < count; i++)
        handles[i] = PMPI_Request_f2c(requests[i]);
    int ours, others;
    pthread_mutex_lock(&lock);
    sort_requests(count, handles, &ours, &others);
    pthread_mutex_unlock(&lock);
    double began = PMPI_Wtime();
    if (ours > 0 && others == 0)
        sleep_until(count, handles, patience);
    if (ours > 0)
        report_waited(PMPI_Wtime() - began);
    if (handles != few)
        free(handles);
}

int requests_start(void)
{
    return engine.attach(hook) < 0 ? MPI_ERR_OTHER : MPI_SUCCESS;
}

void requests_stop(void)
{
    engine.remove(hook);
}
