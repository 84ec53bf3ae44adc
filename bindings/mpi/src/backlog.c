/*
 * backlog.c: nonblocking calls that wait for room.
 *
 * A service process takes a bounded number of requests of a rank, and of bytes if it cannot access the rank's memory.
 * MPI has no such bound, and a nonblocking call never waits for another rank (MPI 4.1, 2.4.2 and 6.12). So calls beyond
 * the bound are kept here, in order, and posted when earlier ones have ended.
 *
 * Some room is left to blocking calls, since the calls in flight may depend on them.
 *
 *   state     entered by              left by
 *   kept      backlog_post_or_keep    backlog_post or backlog_flush: in flight, or ended if the post fails
 *
 * Invariant: the calls of a group are posted in the order of the program. `posting` is held by the thread that posts
 * kept calls; `lock` guards the list and is never held while a call is posted.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "backlog.h"
#include "errors.h"
#include "kept_call.h"
#include "outboard.h"
#include "persistent.h"
#include "posting.h"
#include "requests.h"

/* Nonblocking calls in flight. A service process takes 1024 requests of a rank. */
#define IN_FLIGHT_MAX 512

struct kept {
    struct op *op;
    struct kept_call *call; /* owned, unless the call is persistent */
    enum form form;
    struct group *group;
    uint64_t bytes;
    struct kept *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, posting_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *first;
static atomic_int kept_count;

static bool is_full(int code)
{
    return error_is_outcome(code, OUTBOARD_ERR_RESOURCE);
}

static int post(struct op *op, struct posting *posting, enum form form)
{
    int code = posting_post(posting, form);
    if (code == MPI_SUCCESS)
        op_put_in_flight(op, posting);
    return code;
}

static int keep(struct op *op, struct posting *posting, enum form form)
{
    struct kept *kept = calloc(1, sizeof *kept);
    if (kept == NULL)
        return MPI_ERR_NO_MEM;
    *kept = (struct kept){.op = op, .form = form, .group = posting->group, .bytes = posting->bytes};
    int code = MPI_SUCCESS;
    if (form != PERSISTENT) {
        posting_init(posting, posting->call, posting->group, posting->bytes);
        code = method_of(posting->call->collective)->set_buffers(posting);
        if (code == MPI_SUCCESS)
            code = kept_call_make(posting, false, &kept->call);
    }
    if (code != MPI_SUCCESS) {
        kept_call_free(kept->call);
        free(kept);
        return code;
    }
    op_keep(op);
    pthread_mutex_lock(&lock);
    struct kept **end = &first;
    while (*end != NULL)
        end = &(*end)->next;
    *end = kept;
    atomic_fetch_add(&kept_count, 1);
    pthread_mutex_unlock(&lock);
    return MPI_SUCCESS;
}

int backlog_post_or_keep(struct op *op, struct posting *posting, enum form form)
{
    if (atomic_load(&kept_count) > 0 || requests_in_flight() >= IN_FLIGHT_MAX)
        return keep(op, posting, form);
    int code = post(op, posting, form);
    return is_full(code) && requests_in_flight() > 0 ? keep(op, posting, form) : code;
}

/* The first kept call of the group, or of any group (NULL). */
static struct kept *first_of(const struct group *group)
{
    pthread_mutex_lock(&lock);
    struct kept *kept = first;
    while (kept != NULL && group != NULL && kept->group != group)
        kept = kept->next;
    pthread_mutex_unlock(&lock);
    return kept;
}

static void remove_kept(struct kept *kept)
{
    pthread_mutex_lock(&lock);
    struct kept **at = &first;
    while (*at != kept)
        at = &(*at)->next;
    *at = kept->next;
    atomic_fetch_sub(&kept_count, 1);
    pthread_mutex_unlock(&lock);
    kept_call_free(kept->call);
    free(kept);
}

/* Posts the first kept call of the group, or of any group (NULL); false if there is none or no room. With posting_lock
 * held. */
static bool post_first(const struct group *group)
{
    struct posting posting;
    struct kept *kept = first_of(group);
    if (kept == NULL)
        return false;
    struct op *op = kept->op;
    posting_init(&posting, kept->form == PERSISTENT ? persistent_call(op->persistent) : &kept->call->call, kept->group, kept->bytes);
    int code = post(op, &posting, kept->form);
    if (is_full(code) && requests_in_flight() > 0)
        return false;
    if (code != MPI_SUCCESS)
        op_end_unposted(op, code);
    remove_kept(kept);
    op_release(op);
    return true;
}

void backlog_post(void)
{
    if (atomic_load_explicit(&kept_count, memory_order_relaxed) == 0 || pthread_mutex_trylock(&posting_lock) != 0)
        return;
    while (requests_in_flight() < IN_FLIGHT_MAX && post_first(NULL))
        continue;
    pthread_mutex_unlock(&posting_lock);
}

void backlog_flush(struct group *group)
{
    while (atomic_load(&kept_count) > 0 && first_of(group) != NULL) {
        unsigned ended = requests_ended();
        pthread_mutex_lock(&posting_lock);
        bool posted = post_first(group);
        pthread_mutex_unlock(&posting_lock);
        if (!posted && first_of(group) != NULL)
            requests_wait_past(ended);
    }
}

bool backlog_holds(MPI_Comm comm)
{
    bool holds = false;
    if (atomic_load(&kept_count) == 0)
        return false;
    pthread_mutex_lock(&lock);
    for (const struct kept *kept = first; kept != NULL; kept = kept->next)
        holds = holds || comm == MPI_COMM_NULL || kept->group->comm == comm;
    pthread_mutex_unlock(&lock);
    return holds;
}
