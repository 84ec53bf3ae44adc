/*
 * fake.c: a liboutboard of one machine, for the tests of the MPI shim without a service process.
 *
 * Ranks of a group share a segment that counts their contributions and completions. The contributions lie in one sparse
 * file per rank. A thread per group carries the collectives out in order, some time after the posts, so that requests
 * complete while the program does other work.
 *
 *   OUTBOARD_FAKE_DELAY_US   time from the last contribution to the end of a collective (500)
 *   OUTBOARD_FAKE_MIN_BYTES  smaller contributions are not offloaded (1)
 *   OUTBOARD_FAKE_MOST       requests of a rank that may be in flight (1024)
 *   OUTBOARD_FAKE_GROUPS     groups that a rank may be in (1000)
 *   OUTBOARD_FAKE_REDUCES    the most bytes of a reduction that rank 1 of a group has scratch for (2^40)
 *   OUTBOARD_FAKE_ABSENT     the rank (of mpirun) that finds no service process; -1: none
 *   OUTBOARD_FAKE_FAIL       set: every second collective of a group fails
 *   OUTBOARD_FAKE_LOG        a file to which a process appends what it leaves behind when it detaches
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

/* The distance between the contributions of two calls in the sparse files. */
#define CALL_STRIDE ((uint64_t)1 << 32)

struct segment {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t contributed[MOST_RANKS];
    uint64_t finished[MOST_RANKS];
    uint64_t arrived[MOST_RANKS];
};

struct outboard_context {
    int attached, groups, requests, buffers;
};

static struct outboard_context process;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static int collectives;
static _Thread_local char sentence[256] = "";

long setting(const char *name, long otherwise)
{
    const char *value = getenv(name);
    return value == NULL ? otherwise : strtol(value, NULL, 10);
}

int failure(int outcome, const char *format, ...)
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
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") != NULL ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
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

/* The lowest rank's offer names the group. Every member opens the segment, and the first one makes it. */
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

/* Combines in the order of ranks. */
static void deliver_combined(outboard_group *group, outboard_request *request)
{
    const struct combined *of = &request->combined;
    uint64_t each = element_bytes(of->op, of->element), bytes = of->count * each;
    void *next = malloc(bytes + 1);
    for (uint32_t rank = of->from; rank < of->to; rank++) {
        fetch(group, rank, rank == of->from ? request->receive : next, bytes, request->offset + of->first * each);
        if (rank > of->from)
            fold(request->receive, next, of->count, of->op, of->element);
    }
    free(next);
}

static long delay_us(void)
{
    return setting("OUTBOARD_FAKE_DELAY_US", 500);
}

/* If the program has its own clock (choices.c), time passes only by that clock, and only in the rank's own calls. This
 * function and the next are called with the lock held. */
static void (*programs_clock(void))(long)
{
    static void (*pass)(long);
    static bool known;
    if (!known)
        *(void **)&pass = dlsym(RTLD_DEFAULT, "choices_pass");
    known = true;
    return pass;
}

static void pass_once(outboard_request *request)
{
    if (programs_clock() != NULL && !request->passed)
        programs_clock()(delay_us());
    request->passed = true;
}

static void *carry_out(void *argument)
{
    outboard_group *group = argument;
    struct timespec delay = {0, delay_us() * 1000};
    pthread_mutex_lock(&lock);
    bool sleeps = programs_clock() == NULL;
    pthread_mutex_unlock(&lock);
    for (uint64_t instance = 1;; instance++) {
        pthread_mutex_lock(&lock);
        while (group->queue == NULL && !group->closing)
            pthread_cond_wait(&ended, &lock);
        outboard_request *request = group->queue;
        pthread_mutex_unlock(&lock);
        if (request == NULL)
            return NULL;
        await_all(group, group->segment->contributed, instance);
        if (sleeps)
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
    if (context->groups >= setting("OUTBOARD_FAKE_GROUPS", 1000))
        return failure(OUTBOARD_ERR_RESOURCE, "this rank is in as many groups as it may be");
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
    await_all(group, group->segment->arrived, 1); /* all ranks have opened all files: the names may go */
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

outboard_request *begin(outboard_group *group, void *receive)
{
    outboard_request *request = calloc(1, sizeof *request);
    pthread_mutex_lock(&lock);
    process.requests++;
    *request = (outboard_request){.group = group, .receive = receive, .offset = group->offset};
    return request;
}

void leave(outboard_request *request, const void *from, uint64_t bytes)
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

int submit(outboard_request *request, outboard_request **posted)
{
    outboard_group *group = request->group;
    outboard_request **end = &group->queue;
    if (process.requests > setting("OUTBOARD_FAKE_MOST", 1024)) {
        process.requests--;
        pthread_mutex_unlock(&lock);
        free(request->blocks);
        free(request);
        return failure(OUTBOARD_ERR_RESOURCE, "too many requests are in flight");
    }
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
    if (request->done)
        pass_once(request);
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

int outboard_wait_some_us(outboard_request *const *requests, size_t count, int timeout_us)
{
    return outboard_wait_some(requests, count, timeout_us < 0 ? -1 : (timeout_us + 999) / 1000);
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
    own_operator_use(request->combined.op, -1);
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
