/*
 * mixed.c: random calls on several threads: collectives of many kinds, sizes and forms, completed by every function
 * that waits or tests, mixed with messages, on communicators that come and go with requests in flight.
 *
 *   mixed SEED CALLS [THREADS]
 *
 * All ranks draw the same calls from the seed. Every result is checked. The second half of the calls may not take more
 * descriptors, nor more memory than a few MiB. Prints TAP on rank 0.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPEN_MOST = 24, LENGTH_MOST = 5000, SLACK_KIB = 16384 };
enum kind { GATHER, GATHER_UNEVEN, SPREAD, EXCHANGE, SUM, OWN, SCATTER, MESSAGE, KINDS };

/* A call in flight, with its buffers. */
struct open {
    enum kind kind;
    int length, turn;
    unsigned *sent, *received;
    int *lists;
    MPI_Request request;
    int persistent;
};

struct thread {
    pthread_t thread;
    MPI_Comm comm;
    unsigned state;
    int calls, bad, turn;
    MPI_Op op;
    struct open open[OPEN_MOST];
    int count;
};

static int rank, ranks, single;

static unsigned draw(struct thread *self, unsigned below)
{
    self->state = self->state * 1664525u + 1013904223u;
    return (self->state >> 8) % below;
}

static unsigned value(int of, int turn, int at)
{
    return (unsigned)of * 7919u + (unsigned)turn * 104729u + (unsigned)at;
}

static void add(void *in, void *inout, int *count, MPI_Datatype *type)
{
    unsigned *with = in, *into = inout;
    (void)type;
    for (int i = 0; i < *count; i++)
        into[i] += with[i];
}

static void check(struct thread *self, const struct open *call)
{
    int sum = ranks * (ranks - 1) / 2;
    for (int at = 0; at < call->length; at++) {
        unsigned total = (unsigned)sum * 7919u + (unsigned)ranks * value(0, call->turn, at);
        for (int of = 0; of < ranks; of++) {
            size_t place = (size_t)of * (size_t)call->length + (size_t)at;
            switch (call->kind) {
            case GATHER:
                self->bad += call->received[place] != value(of, call->turn, at);
                break;
            case GATHER_UNEVEN:
                self->bad += at < call->lists[of] &&
                             call->received[call->lists[ranks + of] + at] != value(of, call->turn, at);
                break;
            case EXCHANGE:
                self->bad += call->received[place] != value(of, call->turn, at) + (unsigned)rank;
                break;
            default:
                break;
            }
        }
        switch (call->kind) {
        case SPREAD:
        case MESSAGE:
            self->bad += call->received[at] !=
                         value(call->kind == SPREAD ? call->turn % ranks : (rank + ranks - 1) % ranks, call->turn, at);
            break;
        case SUM:
        case OWN:
            self->bad += call->received[at] != total;
            break;
        case SCATTER:
            self->bad += call->received[at] != value(call->turn % ranks, call->turn, at) + (unsigned)rank;
            break;
        default:
            break;
        }
    }
}

static void close_call(struct thread *self, int at)
{
    struct open *call = &self->open[at];
    check(self, call);
    if (call->persistent)
        MPI_Request_free(&call->request);
    free(call->sent);
    free(call->received);
    free(call->lists);
    self->open[at] = self->open[--self->count];
}

static void fill(const struct open *call)
{
    int root = call->turn % ranks;
    for (int at = 0; at < call->length; at++)
        for (int to = 0; to < ranks; to++) {
            size_t place = (size_t)to * (size_t)call->length + (size_t)at;
            if (call->kind == EXCHANGE || call->kind == SCATTER)
                call->sent[place] = value(rank, call->turn, at) + (unsigned)to;
            else if (to == 0)
                call->sent[at] = value(rank, call->turn, at);
        }
    if (call->kind == SPREAD && rank == root)
        memcpy(call->received, call->sent, (size_t)call->length * sizeof(unsigned));
    for (int of = 0, at = 0; of < ranks; at += call->lists[of++] + 1) {
        call->lists[of] = (call->length + of * 3) % (call->length + 1);
        call->lists[ranks + of] = at;
    }
}

/* Form 0 blocks, 1 posts, 2 makes a persistent request and starts it. */
#define CALL(form, Name, lower, ...)                                                                                   \
    ((form) == 0   ? MPI_##Name(__VA_ARGS__)                                                                           \
     : (form) == 1 ? MPI_I##lower(__VA_ARGS__, &call->request)                                                         \
                   : (MPI_##Name##_INIT(__VA_ARGS__, MPI_INFO_NULL, &call->request), MPI_Start(&call->request)))
#if MPI_VERSION >= 4 || OMPI_MAJOR_VERSION >= 5
#define MPI_Allgather_INIT MPI_Allgather_init
#define MPI_Allgatherv_INIT MPI_Allgatherv_init
#define MPI_Bcast_INIT MPI_Bcast_init
#define MPI_Alltoall_INIT MPI_Alltoall_init
#define MPI_Allreduce_INIT MPI_Allreduce_init
#define MPI_Scatter_INIT MPI_Scatter_init
#else
#include <mpi-ext.h>
#define MPI_Allgather_INIT MPIX_Allgather_init
#define MPI_Allgatherv_INIT MPIX_Allgatherv_init
#define MPI_Bcast_INIT MPIX_Bcast_init
#define MPI_Alltoall_INIT MPIX_Alltoall_init
#define MPI_Allreduce_INIT MPIX_Allreduce_init
#define MPI_Scatter_INIT MPIX_Scatter_init
#endif

static void start(struct thread *self)
{
    struct open *call = &self->open[self->count];
    int form = (int)draw(self, 16), root = self->turn % ranks;
    form = form < 7 ? 0 : form < 15 ? 1 : 2;
    *call = (struct open){.kind = (enum kind)draw(self, KINDS), .turn = self->turn++, .request = MPI_REQUEST_NULL};
    call->length = 1 + (int)draw(self, draw(self, 8) == 0 ? LENGTH_MOST : 60);
    call->sent = malloc((size_t)ranks * (size_t)call->length * sizeof(unsigned));
    call->received = calloc((size_t)ranks * ((size_t)call->length + 1), sizeof(unsigned));
    call->lists = calloc(2 * (size_t)ranks, sizeof(int));
    fill(call);
    int n = call->length;
    switch (call->kind) {
    case GATHER:
        CALL(form, Allgather, allgather, call->sent, n, MPI_UNSIGNED, call->received, n, MPI_UNSIGNED, self->comm);
        break;
    case GATHER_UNEVEN:
        CALL(form, Allgatherv, allgatherv, call->sent, call->lists[rank], MPI_UNSIGNED, call->received, call->lists,
             call->lists + ranks, MPI_UNSIGNED, self->comm);
        break;
    case SPREAD:
        CALL(form, Bcast, bcast, call->received, n, MPI_UNSIGNED, root, self->comm);
        break;
    case EXCHANGE:
        CALL(form, Alltoall, alltoall, call->sent, n, MPI_UNSIGNED, call->received, n, MPI_UNSIGNED, self->comm);
        break;
    case SUM:
    case OWN:
        CALL(form, Allreduce, allreduce, call->sent, call->received, n, MPI_UNSIGNED,
             call->kind == SUM ? MPI_SUM : self->op, self->comm);
        break;
    case SCATTER:
        CALL(form, Scatter, scatter, call->sent, n, MPI_UNSIGNED, call->received, n, MPI_UNSIGNED, root, self->comm);
        break;
    default:
        form = 1;
        MPI_Irecv(call->received, n, MPI_UNSIGNED, (rank + ranks - 1) % ranks, call->turn % 1000, self->comm,
                  &call->request);
        MPI_Send(call->sent, n, MPI_UNSIGNED, (rank + 1) % ranks, call->turn % 1000, self->comm);
    }
    call->persistent = form == 2;
    self->count++;
    if (form == 0)
        close_call(self, self->count - 1);
}

/* Completes some of the calls in flight by a function drawn at random; all of them if `all`. */
static void complete(struct thread *self, int all)
{
    MPI_Request requests[OPEN_MOST];
    int indices[OPEN_MOST], done = 0, flag = 0, count = self->count;
    int way = all ? 4 + (int)draw(self, 2) : (int)draw(self, 6);
    for (int i = 0; i < count; i++)
        requests[i] = self->open[i].request;
    switch (way) {
    case 0:
        MPI_Waitany(count, requests, indices, MPI_STATUS_IGNORE);
        done = 1;
        break;
    case 1:
        MPI_Waitsome(count, requests, &done, indices, MPI_STATUSES_IGNORE);
        break;
    case 2:
        for (done = 0; done <= 0;)
            MPI_Testsome(count, requests, &done, indices, MPI_STATUSES_IGNORE);
        break;
    case 3:
        while (!flag)
            MPI_Testany(count, requests, indices, &flag, MPI_STATUS_IGNORE);
        done = 1;
        break;
    case 4:
        MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
        break;
    default:
        while (!flag)
            MPI_Testall(count, requests, &flag, MPI_STATUSES_IGNORE);
    }
    for (int i = 0; way >= 4 && i < count; i++)
        indices[done++] = i;
    for (int i = 0; i < count; i++)
        self->open[i].request = requests[i];
    /* From the end, as a closed call makes room for the last one. */
    for (int at = count - 1; at >= 0; at--)
        for (int i = 0; i < done; i++)
            if (indices[i] == at)
                close_call(self, at);
}

static void renew(struct thread *self)
{
    MPI_Comm next;
    MPI_Comm_dup(self->comm, &next);
    MPI_Comm_free(&self->comm); /* with requests in flight */
    self->comm = next;
    MPI_Op_free(&self->op);
    MPI_Op_create(add, 1, &self->op);
}

static void *body(void *argument)
{
    struct thread *self = argument;
    for (int call = 0; call < self->calls; call++) {
        /* The number in flight differs between ranks, so the seed alone decides what happens next. */
        unsigned next = draw(self, 100), renewing = draw(self, 400);
        unsigned kept = self->state;
        if (self->count == OPEN_MOST)
            complete(self, 1);
        else if (next < 30 && self->count > 0)
            complete(self, 0);
        self->state = kept;
        start(self);
        if (renewing == 0)
            renew(self);
    }
    while (self->count > 0)
        complete(self, 1);
    return NULL;
}

static long resident_kib(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1)
        pages = 0;
    if (file != NULL)
        fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int descriptors(void)
{
    int count = 0;
    DIR *open = opendir("/proc/self/fd");
    while (open != NULL && readdir(open) != NULL)
        count++;
    closedir(open);
    return count;
}

/* Runs all threads to their end. */
static int play(struct thread *threads, int count, int calls)
{
    int bad = 0;
    for (int i = 0; i < count; i++) {
        threads[i].calls = calls / count;
        if (single)
            body(&threads[i]);
        else
            pthread_create(&threads[i].thread, NULL, body, &threads[i]);
    }
    for (int i = 0; i < count; i++) {
        if (!single)
            pthread_join(threads[i].thread, NULL);
        bad += threads[i].bad;
    }
    return bad;
}

int main(int argc, char **argv)
{
    int provided, count = argc > 3 ? atoi(argv[3]) : 4, calls = argc > 2 ? atoi(argv[2]) : 2000, bad[3] = {0}, all[3];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    single = provided < MPI_THREAD_MULTIPLE || count == 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int *everybody = malloc((size_t)ranks * sizeof(int));
    MPI_Allgather(&rank, 1, MPI_INT, everybody, 1, MPI_INT, MPI_COMM_WORLD);
    free(everybody);
    struct thread *threads = calloc((size_t)count, sizeof *threads);
    for (int i = 0; i < count; i++) {
        threads[i].state = (unsigned)(argc > 1 ? atoi(argv[1]) : 1) * 2654435761u + (unsigned)i;
        MPI_Comm_dup(MPI_COMM_WORLD, &threads[i].comm);
        MPI_Op_create(add, 1, &threads[i].op);
    }
    bad[0] = play(threads, count, calls / 2);
    long memory = resident_kib();
    int files = descriptors();
    bad[0] += play(threads, count, calls / 2);
    bad[1] = resident_kib() > memory + SLACK_KIB;
    bad[2] = descriptors() > files + 2;
    if (bad[1] || bad[2])
        printf("# rank %d: %ld then %ld KiB, %d then %d descriptors\n", rank, memory, resident_kib(), files,
               descriptors());
    for (int i = 0; i < count; i++) {
        MPI_Comm_free(&threads[i].comm);
        MPI_Op_free(&threads[i].op);
    }
    MPI_Reduce(bad, all, 3, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s 1 - every result\n%s 2 - memory stays\n%s 3 - descriptors stay\n", all[0] ? "not ok" : "ok",
               all[1] ? "not ok" : "ok", all[2] ? "not ok" : "ok");
    free(threads);
    MPI_Finalize();
    return bad[0] || bad[1] || bad[2];
}
