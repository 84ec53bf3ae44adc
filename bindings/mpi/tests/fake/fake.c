/*
 * fake.c: a liboutboard of one machine, for the tests of the MPI shim without a service process.
 *
 * Ranks of a group share a segment that counts what each has contributed and finished; contributions lie in one sparse
 * file per rank. A thread per group carries the collectives out in order, some time after they were posted, so that
 * requests complete while the program is elsewhere.
 *
 *   OUTBOARD_FAKE_DELAY_US   how long after all contributions are there a collective ends (500)
 *   OUTBOARD_FAKE_MIN_BYTES  smaller contributions are not offloaded (1)
 *   OUTBOARD_FAKE_ABSENT     the rank (of mpirun) that finds no service process; -1: none
 *   OUTBOARD_FAKE_FAIL       set: every second collective of a group fails
 *   OUTBOARD_FAKE_LOG        where a process appends what it leaves behind when it detaches
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fold.h"
#include "outboard.h"

#define MOST_RANKS 64
/* How far apart the contributions of two calls lie in the sparse files. */
#define CALL_STRIDE ((uint64_t)1 << 32)

struct segment {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t contributed[MOST_RANKS];
    uint64_t finished[MOST_RANKS];
    uint64_t arrived[MOST_RANKS];
};

/* Of a reduction: which elements this rank receives, combined over which ranks. */
struct combined {
    int op, element;       /* 0: no reduction */
    uint64_t first, count; /* elements */
    uint32_t from, to;     /* ranks */
};

struct outboard_request {
    outboard_group *group;
    void *receive;
    uint64_t bytes, offset; /* of what this rank contributes, in its file */
    struct combined combined;
    uint64_t *blocks;      /* of an alltoall: bytes by rank, then offsets by rank, of what arrives; else NULL */
    int outcome;
    bool done, freed;
    outboard_request *next;
};

struct outboard_group {
    uint32_t ranks, rank;
    char name[96];
    struct segment *segment;
    int files[MOST_RANKS];
    uint64_t posted, offset;
    outboard_request *queue;
    bool closing;
    pthread_t thread;
};

struct outboard_context {
    int attached, groups, requests, buffers;
};

static struct outboard_context process;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static int collectives;
static _Thread_local char sentence[256] = "";

static long setting(const char *name, long otherwise)
{
    const char *value = getenv(name);
    return value == NULL ? otherwise : strtol(value, NULL, 10);
}

static int __attribute__((format(printf, 2, 3))) failure(int outcome, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return outcome;
}

int outboard_abi_version(void)
{
    return OUTBOARD_ABI_VERSION;
}

const char *outboard_strerror(int code)
{
    return code == OUTBOARD_ERR_RANK_LOST ? "a rank of the group died or left" : "failure of the fake";
}

const char *outboard_last_error(void)
{
    return sentence;
}

int outboard_attach(const char *socket_path, outboard_context **context)
{
    (void)socket_path;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rank != NULL && atol(rank) == setting("OUTBOARD_FAKE_ABSENT", -1))
        return failure(OUTBOARD_ERR_NO_SERVICE, "no service process answers at /fake; start outboardd");
    process.attached++;
    *context = &process;
    return OUTBOARD_OK;
}

int outboard_detach(outboard_context *context)
{
    const char *log = getenv("OUTBOARD_FAKE_LOG");
    FILE *to = log == NULL ? NULL : fopen(log, "a");
    if (to != NULL) {
        fprintf(to, "left groups=%d requests=%d buffers=%d collectives=%d\n", context->groups, context->requests,
                context->buffers, collectives);
        fclose(to);
    }
    return context->groups > 0 ? OUTBOARD_ERR_BUSY : OUTBOARD_OK;
}

int outboard_group_offer(outboard_context *context, void *offer)
{
    static unsigned drawn;
    (void)context;
    memset(offer, 0, OUTBOARD_OFFER_BYTES);
    pthread_mutex_lock(&lock);
    snprintf(offer, OUTBOARD_OFFER_BYTES, "/outboard-fake-%d-%u", (int)getpid(), drawn++);
    pthread_mutex_unlock(&lock);
    return OUTBOARD_OK;
}

/* The lowest rank's offer names the group; every member opens the segment, whoever comes first makes it. */
static struct segment *open_segment(const char *name)
{
    int file = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    bool made = file >= 0;
    if (!made)
        file = shm_open(name, O_RDWR, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct segment) + 64) != 0)
        return NULL;
    struct segment *segment = mmap(NULL, sizeof *segment + 64, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    volatile int *ready = (volatile int *)(segment + 1);
    close(file);
    if (made) {
        pthread_mutexattr_t mutex;
        pthread_condattr_t cond;
        pthread_mutexattr_init(&mutex);
        pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
        pthread_condattr_init(&cond);
        pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(&segment->lock, &mutex);
        pthread_cond_init(&segment->changed, &cond);
        __atomic_store_n(ready, 1, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(ready, __ATOMIC_ACQUIRE) == 0)
        usleep(100);
    return segment;
}

/* Waits until every rank's counter has reached `least`. */
static void await_all(outboard_group *group, const uint64_t *counters, uint64_t least)
{
    struct segment *segment = group->segment;
    bool all = false;
    pthread_mutex_lock(&segment->lock);
    while (!all) {
        all = true;
        for (uint32_t rank = 0; rank < group->ranks; rank++)
            all = all && counters[rank] >= least;
        if (!all)
            pthread_cond_wait(&segment->changed, &segment->lock);
    }
    pthread_mutex_unlock(&segment->lock);
}

static void count(outboard_group *group, uint64_t *counter)
{
    pthread_mutex_lock(&group->segment->lock);
    ++*counter;
    pthread_cond_broadcast(&group->segment->changed);
    pthread_mutex_unlock(&group->segment->lock);
}

static void fetch(outboard_group *group, uint32_t rank, void *to, uint64_t bytes, uint64_t offset)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t part = pread(group->files[rank], (char *)to + done, bytes - done, (off_t)(offset + done));
        if (part <= 0)
            abort();
        done += (uint64_t)part;
    }
}

/* A rank's file holds the bytes for each rank, then the blocks one after another. */
static void deliver_blocks(outboard_group *group, outboard_request *request)
{
    uint64_t bytes[MOST_RANKS];
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        fetch(group, rank, bytes, group->ranks * sizeof *bytes, request->offset);
        uint64_t at = request->offset + group->ranks * sizeof *bytes;
        for (uint32_t before = 0; before < group->rank; before++)
            at += bytes[before];
        if (bytes[group->rank] != request->blocks[rank])
            abort();
        fetch(group, rank, (char *)request->receive + request->blocks[group->ranks + rank], request->blocks[rank], at);
    }
}

/* In the order of ranks. */
static void deliver_combined(outboard_group *group, outboard_request *request)
{
    const struct combined *of = &request->combined;
    uint64_t each = element_bytes(of->element), bytes = of->count * each;
    void *next = malloc(bytes + 1);
    for (uint32_t rank = of->from; rank < of->to; rank++) {
        fetch(group, rank, rank == of->from ? request->receive : next, bytes, request->offset + of->first * each);
        if (rank > of->from)
            fold(request->receive, next, of->count, of->op, of->element);
    }
    free(next);
}

static void *carry_out(void *argument)
{
    outboard_group *group = argument;
    struct timespec delay = {0, setting("OUTBOARD_FAKE_DELAY_US", 500) * 1000};
    for (uint64_t instance = 1;; instance++) {
        pthread_mutex_lock(&lock);
        while (group->queue == NULL && !group->closing)
            pthread_cond_wait(&ended, &lock);
        outboard_request *request = group->queue;
        pthread_mutex_unlock(&lock);
        if (request == NULL)
            return NULL;
        await_all(group, group->segment->contributed, instance);
        nanosleep(&delay, NULL);
        (request->blocks != NULL ? deliver_blocks : deliver_combined)(group, request);
        count(group, &group->segment->finished[group->rank]);
        await_all(group, group->segment->finished, instance);
        fallocate(group->files[group->rank], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)request->offset,
                  (off_t)request->bytes);
        pthread_mutex_lock(&lock);
        group->queue = request->next;
        collectives++;
        if (instance % 2 == 0 && getenv("OUTBOARD_FAKE_FAIL") != NULL)
            request->outcome = OUTBOARD_ERR_RANK_LOST;
        request->done = true;
        free(request->blocks);
        request->blocks = NULL;
        if (request->freed)
            free(request);
        pthread_cond_broadcast(&ended);
        pthread_mutex_unlock(&lock);
    }
}

int outboard_group_create(outboard_context *context, const void *offers, uint32_t ranks, uint32_t rank,
                          outboard_group **made)
{
    if (ranks > MOST_RANKS)
        return failure(OUTBOARD_ERR_RESOURCE, "the fake has room for %d ranks, not %u", MOST_RANKS, ranks);
    outboard_group *group = calloc(1, sizeof *group);
    group->ranks = ranks;
    group->rank = rank;
    snprintf(group->name, sizeof group->name, "%.63s", (const char *)offers);
    group->segment = open_segment(group->name);
    if (group->segment == NULL)
        return failure(OUTBOARD_ERR_RESOURCE, "cannot open %s: %s", group->name, strerror(errno));
    for (uint32_t other = 0; other < ranks; other++) {
        char name[128];
        snprintf(name, sizeof name, "%s.%u", group->name, other);
        group->files[other] = shm_open(name, O_RDWR | O_CREAT, 0600);
    }
    count(group, &group->segment->arrived[rank]);
    await_all(group, group->segment->arrived, 1); /* all have opened everything: the names may go */
    char name[128];
    snprintf(name, sizeof name, "%s.%u", group->name, rank);
    shm_unlink(name);
    if (rank == 0)
        shm_unlink(group->name);
    pthread_mutex_lock(&lock);
    context->groups++;
    pthread_mutex_unlock(&lock);
    *made = group;
    pthread_create(&group->thread, NULL, carry_out, group);
    return OUTBOARD_OK;
}

int outboard_group_destroy(outboard_group *group)
{
    pthread_mutex_lock(&lock);
    group->closing = true;
    process.groups--;
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&lock);
    pthread_join(group->thread, NULL);
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        close(group->files[rank]);
    munmap(group->segment, sizeof *group->segment + 64);
    free(group);
    return OUTBOARD_OK;
}

int outboard_group_offloads_allgather(const outboard_group *group, uint64_t bytes_per_rank)
{
    (void)group;
    return bytes_per_rank >= (uint64_t)setting("OUTBOARD_FAKE_MIN_BYTES", 1);
}

int outboard_group_offloads_broadcast(const outboard_group *group, uint64_t bytes)
{
    return outboard_group_offloads_allgather(group, bytes);
}

/* From here to submit() the lock is held. */
static outboard_request *begin(outboard_group *group, void *receive)
{
    outboard_request *request = calloc(1, sizeof *request);
    pthread_mutex_lock(&lock);
    process.requests++;
    *request = (outboard_request){.group = group, .receive = receive, .offset = group->offset};
    return request;
}

/* Every rank leaves what it contributes in its file, at the same place. */
static void leave(outboard_request *request, const void *from, uint64_t bytes)
{
    outboard_group *group = request->group;
    for (uint64_t done = 0; done < bytes;) {
        ssize_t part = pwrite(group->files[group->rank], (const char *)from + done, bytes - done,
                              (off_t)(request->offset + request->bytes));
        if (part <= 0)
            abort();
        done += (uint64_t)part;
        request->bytes += (uint64_t)part;
    }
}

static int submit(outboard_request *request, outboard_request **posted)
{
    outboard_group *group = request->group;
    outboard_request **end = &group->queue;
    while (*end != NULL)
        end = &(*end)->next;
    *end = request;
    group->offset += CALL_STRIDE;
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&lock);
    count(group, &group->segment->contributed[group->rank]);
    *posted = request;
    return OUTBOARD_OK;
}

int outboard_group_offloads_allgatherv(const outboard_group *group, uint64_t total_bytes)
{
    return outboard_group_offloads_allgather(group, total_bytes);
}

int outboard_group_offloads_alltoall(const outboard_group *group, uint64_t bytes_per_pair)
{
    return outboard_group_offloads_allgather(group, bytes_per_pair * group->ranks);
}

int outboard_group_offloads_alltoallv(const outboard_group *group)
{
    (void)group;
    return 1;
}

int outboard_ialltoallv(outboard_group *group, const void *send, const uint64_t *send_bytes,
                        const uint64_t *send_offsets, void *receive, const uint64_t *receive_bytes,
                        const uint64_t *receive_offsets, outboard_request **posted)
{
    if (receive == NULL || send == NULL)
        return failure(OUTBOARD_ERR_ARGUMENT, "a buffer is NULL");
    size_t list = group->ranks * sizeof(uint64_t);
    uint64_t *blocks = malloc(2 * list);
    memcpy(blocks, receive_bytes, list);
    memcpy(blocks + group->ranks, receive_offsets, list);
    outboard_request *request = begin(group, receive);
    request->blocks = blocks;
    leave(request, send_bytes, list);
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        leave(request, (const char *)send + send_offsets[rank], send_bytes[rank]);
    return submit(request, posted);
}

/* An exchange in which everybody sends the same to all. */
int outboard_iallgatherv(outboard_group *group, const void *send, void *receive, const uint64_t *bytes,
                         const uint64_t *offsets, outboard_request **posted)
{
    uint64_t sent[MOST_RANKS], from[MOST_RANKS] = {0};
    if (send == OUTBOARD_IN_PLACE)
        send = (char *)receive + offsets[group->rank];
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        sent[rank] = bytes[group->rank];
    return outboard_ialltoallv(group, send, sent, from, receive, bytes, offsets, posted);
}

/* A block for each rank, side by side. */
struct blocks {
    uint64_t bytes[MOST_RANKS], offsets[MOST_RANKS];
};

static struct blocks even_blocks(const outboard_group *group, uint64_t each)
{
    struct blocks even = {{0}, {0}};
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        even.bytes[rank] = each;
        even.offsets[rank] = rank * each;
    }
    return even;
}

int outboard_iallgather(outboard_group *group, const void *send, void *receive, uint64_t bytes_per_rank,
                        outboard_request **posted)
{
    const struct blocks even = even_blocks(group, bytes_per_rank);
    return outboard_iallgatherv(group, send, receive, even.bytes, even.offsets, posted);
}

int outboard_ialltoall(outboard_group *group, const void *send, void *receive, uint64_t bytes_per_pair,
                       outboard_request **posted)
{
    const struct blocks even = even_blocks(group, bytes_per_pair);
    return outboard_ialltoallv(group, send, even.bytes, even.offsets, receive, even.bytes, even.offsets, posted);
}

int outboard_group_offloads_gather(const outboard_group *group, uint64_t bytes_per_rank)
{
    return outboard_group_offloads_allgather(group, bytes_per_rank);
}

/* A gather or scatter is an exchange in which all but the root have one block. */
int outboard_igatherv(outboard_group *group, const void *send, uint64_t send_bytes, void *receive,
                      const uint64_t *receive_bytes, const uint64_t *receive_offsets, uint32_t root,
                      outboard_request **posted)
{
    uint64_t sent[MOST_RANKS] = {0}, from[MOST_RANKS] = {0};
    bool is_root = group->rank == root;
    if (send == OUTBOARD_IN_PLACE) {
        if (!is_root)
            return failure(OUTBOARD_ERR_ARGUMENT, "in place, but not the root");
        send = (char *)receive + receive_offsets[root];
        send_bytes = receive_bytes[root];
    }
    sent[root] = send_bytes;
    return outboard_ialltoallv(group, send, sent, from, is_root ? receive : from, is_root ? receive_bytes : from,
                               is_root ? receive_offsets : from, posted);
}

int outboard_iscatterv(outboard_group *group, const void *send, const uint64_t *send_bytes,
                       const uint64_t *send_offsets, void *receive, uint64_t receive_bytes, uint32_t root,
                       outboard_request **posted)
{
    uint64_t sent[MOST_RANKS] = {0}, received[MOST_RANKS] = {0}, nowhere[MOST_RANKS] = {0};
    bool is_root = group->rank == root, stays = receive == OUTBOARD_IN_PLACE;
    if (stays && !is_root)
        return failure(OUTBOARD_ERR_ARGUMENT, "in place, but not the root");
    if (is_root)
        memcpy(sent, send_bytes, group->ranks * sizeof *sent);
    if (stays)
        sent[root] = 0;
    received[root] = stays ? 0 : receive_bytes;
    return outboard_ialltoallv(group, is_root ? send : nowhere, sent, is_root ? send_offsets : nowhere, receive,
                               received, nowhere, posted);
}

int outboard_igather(outboard_group *group, const void *send, void *receive, uint64_t bytes_per_rank, uint32_t root,
                     outboard_request **posted)
{
    const struct blocks even = even_blocks(group, bytes_per_rank);
    return outboard_igatherv(group, send, bytes_per_rank, receive, even.bytes, even.offsets, root, posted);
}

int outboard_iscatter(outboard_group *group, const void *send, void *receive, uint64_t bytes_per_rank, uint32_t root,
                      outboard_request **posted)
{
    const struct blocks even = even_blocks(group, bytes_per_rank);
    return outboard_iscatterv(group, send, even.bytes, even.offsets, receive, bytes_per_rank, root, posted);
}

/* The root has the same for all others. */
int outboard_ibroadcast(outboard_group *group, void *buffer, uint64_t bytes, uint32_t root, outboard_request **posted)
{
    uint64_t sent[MOST_RANKS] = {0}, received[MOST_RANKS] = {0}, nowhere[MOST_RANKS] = {0};
    if (root >= group->ranks)
        return failure(OUTBOARD_ERR_ARGUMENT, "no such root");
    for (uint32_t rank = 0; group->rank == root && rank < group->ranks; rank++)
        sent[rank] = rank == root ? 0 : bytes;
    received[root] = group->rank == root ? 0 : bytes;
    return outboard_ialltoallv(group, buffer, sent, nowhere, buffer, received, nowhere, posted);
}

int outboard_group_offloads_barrier(const outboard_group *group)
{
    (void)group;
    return 1;
}

int outboard_group_offloads_reduction(const outboard_group *group, uint64_t bytes)
{
    return outboard_group_offloads_allgather(group, bytes);
}

/* An exchange of nothing: everything in the fake waits for all. */
int outboard_ibarrier(outboard_group *group, outboard_request **posted)
{
    uint64_t nothing[MOST_RANKS] = {0};
    return outboard_ialltoallv(group, nothing, nothing, nothing, nothing, nothing, nothing, posted);
}

/* Every rank leaves its vector of `elements` elements. */
static int post_combined(outboard_group *group, const void *send, void *receive, uint64_t elements,
                         struct combined combined, outboard_request **posted)
{
    uint64_t bytes = elements * element_bytes(combined.element);
    if (element_bytes(combined.element) == 0 || combined.op < OUTBOARD_SUM || combined.op > OUTBOARD_LOGICAL_XOR)
        return failure(OUTBOARD_ERR_ARGUMENT, "no such operator or element");
    if (send == NULL || receive == NULL)
        return failure(OUTBOARD_ERR_ARGUMENT, "a buffer is NULL");
    outboard_request *request = begin(group, receive);
    request->combined = combined;
    leave(request, send == OUTBOARD_IN_PLACE ? receive : send, bytes);
    return submit(request, posted);
}

int outboard_ireduce(outboard_group *group, const void *send, void *receive, uint64_t elements, int op, int element,
                     uint32_t root, outboard_request **posted)
{
    uint32_t to = group->rank == root ? group->ranks : 0;
    if (root >= group->ranks || (send == OUTBOARD_IN_PLACE && group->rank != root))
        return failure(OUTBOARD_ERR_ARGUMENT, "no such root, or in place elsewhere");
    return post_combined(group, send, receive, elements, (struct combined){op, element, 0, elements, 0, to}, posted);
}

int outboard_iallreduce(outboard_group *group, const void *send, void *receive, uint64_t elements, int op, int element,
                        outboard_request **posted)
{
    struct combined all = {op, element, 0, elements, 0, group->ranks};
    return post_combined(group, send, receive, elements, all, posted);
}

int outboard_ireduce_scatter(outboard_group *group, const void *send, void *receive, const uint64_t *counts, int op,
                             int element, outboard_request **posted)
{
    struct combined own = {op, element, 0, counts[group->rank], 0, group->ranks};
    uint64_t elements = 0;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        own.first += rank < group->rank ? counts[rank] : 0;
        elements += counts[rank];
    }
    return post_combined(group, send, receive, elements, own, posted);
}

int outboard_ireduce_scatter_block(outboard_group *group, const void *send, void *receive, uint64_t elements, int op,
                                   int element, outboard_request **posted)
{
    uint64_t counts[MOST_RANKS];
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        counts[rank] = elements;
    return outboard_ireduce_scatter(group, send, receive, counts, op, element, posted);
}

int outboard_iscan(outboard_group *group, const void *send, void *receive, uint64_t elements, int op, int element,
                   outboard_request **posted)
{
    struct combined before = {op, element, 0, elements, 0, group->rank + 1};
    return post_combined(group, send, receive, elements, before, posted);
}

int outboard_iexscan(outboard_group *group, const void *send, void *receive, uint64_t elements, int op, int element,
                     outboard_request **posted)
{
    struct combined before = {op, element, 0, elements, 0, group->rank};
    return post_combined(group, send, receive, elements, before, posted);
}

/* With the lock held. */
static int outcome_of(outboard_request *request)
{
    if (request->outcome == OUTBOARD_OK)
        return OUTBOARD_OK;
    return failure(request->outcome, "rank 3 of the fake died");
}

int outboard_test(outboard_request *request, int *done)
{
    pthread_mutex_lock(&lock);
    *done = request->done;
    int outcome = outcome_of(request);
    pthread_mutex_unlock(&lock);
    return outcome;
}

static struct timespec deadline(int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    until.tv_sec += timeout_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return until;
}

int outboard_wait_some(outboard_request *const *requests, size_t count, int timeout_ms)
{
    struct timespec until = deadline(timeout_ms < 0 ? 0 : timeout_ms);
    int late = 0;
    pthread_mutex_lock(&lock);
    for (bool any = false; !any && late == 0;) {
        for (size_t i = 0; i < count; i++)
            any = any || (requests[i] != NULL && requests[i]->done);
        if (!any)
            late = timeout_ms < 0 ? pthread_cond_wait(&ended, &lock) : pthread_cond_timedwait(&ended, &lock, &until);
    }
    pthread_mutex_unlock(&lock);
    return OUTBOARD_OK;
}

int outboard_wait(outboard_request *request, int timeout_ms, int *done)
{
    int unasked;
    outboard_wait_some(&request, 1, timeout_ms);
    return outboard_test(request, done == NULL ? &unasked : done);
}

int outboard_request_free(outboard_request *request)
{
    pthread_mutex_lock(&lock);
    process.requests--;
    if (request->done)
        free(request);
    else
        request->freed = true;
    pthread_mutex_unlock(&lock);
    return OUTBOARD_OK;
}

int outboard_alloc(outboard_context *context, size_t bytes, void **memory)
{
    *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    pthread_mutex_lock(&lock);
    context->buffers += *memory != NULL;
    pthread_mutex_unlock(&lock);
    return *memory == NULL ? OUTBOARD_ERR_RESOURCE : OUTBOARD_OK;
}

int outboard_dealloc(outboard_context *context, void *memory)
{
    free(memory);
    pthread_mutex_lock(&lock);
    context->buffers--;
    pthread_mutex_unlock(&lock);
    return OUTBOARD_OK;
}
