/*
 * choices.c: programs whose calls the shim may offload or leave to the MPI library; its report shows which.
 *
 *   choices blocking N      N allgathers of 4 KiB on MPI_COMM_WORLD
 *   choices twice N         as blocking, then one more on a duplicate of MPI_COMM_WORLD
 *   choices nonblocking N   N nonblocking allgathers of 4 KiB, each followed by a barrier
 *   choices large N         N nonblocking allgathers of 512 KiB on a duplicate of MPI_COMM_WORLD, behind ten others and
 *                           a barrier
 *   choices mixed N         blocking and nonblocking allgathers of many sizes on three communicators, ranks delayed at
 *                           random
 *   choices duplicates N    N communicators made and freed, then N at once
 *   choices idup N          as blocking, on a communicator of MPI_Comm_idup
 *   choices reductions N    N allreduces of 4 KiB
 *   choices mapped N        rank 0 prints how many of N blocks of 160 KiB malloc maps by themselves
 *   choices connections N   rank 0 prints how many TCP sockets each rank has after N allreduces
 *
 * The clock of the MPI library is this program's, so a busy machine changes no choice. It advances by
 * CHOICES_PAUSE_US=N between two calls, by CHOICES_NATIVE_US=N (100) in a native allgather, and by
 * OUTBOARD_FAKE_DELAY_US in an offloaded call. CHOICES_RANKS_PER_HOST=N makes the MPI library report N ranks on each
 * host. Functions here replace functions of the MPI library by their PMPI_ names. Checks every result; exits 1 if a
 * result was wrong.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <locale.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define MOST 131072

static int rank, ranks, bad;
static int sent[MOST], *received;

static long setting(const char *name)
{
    const char *value = getenv(name);
    return value == NULL ? 0 : atol(value);
}

static atomic_long clock_us;

/* The fake liboutboard calls this function, too. */
void choices_pass(long microseconds)
{
    atomic_fetch_add(&clock_us, microseconds);
}

double PMPI_Wtime(void)
{
    return (double)atomic_load(&clock_us) * 1e-6;
}

/* Lets other ranks go first, and advances the clock. */
static void linger(long microseconds)
{
    struct timespec time = {0, microseconds * 1000};
    nanosleep(&time, NULL);
    choices_pass(microseconds);
}

/* The function of the MPI library itself. */
static void *library_function(const char *name)
{
    Dl_info where;
    void *rank_function = dlsym(RTLD_DEFAULT, "PMPI_Comm_rank"); /* the shim does not stand before this name */
    if (rank_function == NULL || dladdr(rank_function, &where) == 0)
        abort();
    return dlsym(dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD), name);
}

int PMPI_Get_processor_name(char *name, int *length)
{
    static int (*next)(char *, int *);
    int me;
    long each = setting("CHOICES_RANKS_PER_HOST");
    *(void **)&next = library_function("PMPI_Get_processor_name");
    if (each == 0)
        return next(name, length);
    PMPI_Comm_rank(MPI_COMM_WORLD, &me);
    *length = snprintf(name, MPI_MAX_PROCESSOR_NAME, "host%ld", me / each);
    return MPI_SUCCESS;
}

int PMPI_Allgather(const void *from, int count, MPI_Datatype type, void *to, int counts, MPI_Datatype types,
                   MPI_Comm comm)
{
    static int (*next)(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
    *(void **)&next = library_function("PMPI_Allgather");
    long takes = setting("CHOICES_NATIVE_US");
    choices_pass(takes > 0 ? takes : 100);
    return next(from, count, type, to, counts, types, comm);
}

static void gather(MPI_Comm comm, int count, int blocking, int call)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int me, members;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &members);
    for (int at = 0; at < count; at++)
        sent[at] = me * 1000003 + at + call;
    memset(received, 0xee, (size_t)count * (size_t)members * sizeof *received);
    if (blocking)
        MPI_Allgather(sent, count, MPI_INT, received, count, MPI_INT, comm);
    else
        MPI_Iallgather(sent, count, MPI_INT, received, count, MPI_INT, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int of = 0; of < members; of++)
        for (int at = 0; at < count; at++)
            bad += received[of * count + at] != of * 1000003 + at + call;
}

static void blocking(int calls)
{
    for (int call = 0; call < calls; call++) {
        gather(MPI_COMM_WORLD, 1024, 1, call);
        choices_pass(setting("CHOICES_PAUSE_US"));
    }
}

static void twice(int calls)
{
    MPI_Comm dup;
    blocking(calls);
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    gather(dup, 1024, 1, calls);
    MPI_Comm_free(&dup);
}

static void nonblocking(int calls)
{
    for (int call = 0; call < calls; call++) {
        gather(MPI_COMM_WORLD, 1024, 0, call);
        MPI_Barrier(MPI_COMM_WORLD);
        choices_pass(setting("CHOICES_PAUSE_US"));
    }
}

static void large(int calls)
{
    MPI_Comm dup;
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    for (int call = 0; call < 10; call++)
        gather(dup, MOST, 0, call);
    MPI_Barrier(dup);
    for (int call = 0; call < calls; call++)
        gather(dup, MOST, 0, call);
    MPI_Comm_free(&dup);
}

static void mixed(int calls)
{
    struct timespec now;
    MPI_Comm comms[3] = {MPI_COMM_WORLD, MPI_COMM_NULL, MPI_COMM_NULL};
    MPI_Comm_dup(MPI_COMM_WORLD, &comms[1]);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &comms[2]);
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned seed = (unsigned)now.tv_nsec + (unsigned)rank, common = 1;
    for (int call = 0; call < calls; call++) {
        common = common * 1103515245u + 12345u; /* equal on all ranks */
        if (rand_r(&seed) % 4 == 0)
            linger(rand_r(&seed) % 1500);
        gather(comms[common >> 16 & 3 ? 0 : 1 + (common >> 18 & 1)], 1 << (common >> 20 & 7), common >> 24 & 1, call);
        if (common >> 25 & 1)
            MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Comm_free(&comms[1]);
    MPI_Comm_free(&comms[2]);
}

static void duplicates(int calls)
{
    MPI_Comm *made = malloc((size_t)calls * sizeof *made);
    for (int call = 0; call < calls; call++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &made[0]);
        MPI_Comm_free(&made[0]);
    }
    /* Many communicators at once, freed in another order than they were made. */
    for (int call = 0; call < calls; call++)
        MPI_Comm_dup(MPI_COMM_WORLD, &made[call]);
    for (int call = 0; call < calls; call++)
        MPI_Comm_free(&made[call * 7 % calls]);
    free(made);
}

static void reductions(int calls)
{
    for (int call = 0; call < calls; call++) {
        sent[0] = rank + call;
        MPI_Allreduce(sent, received, 1024, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        choices_pass(setting("CHOICES_PAUSE_US"));
        bad += received[0] != ranks * (ranks - 1) / 2 + ranks * call;
    }
}

/* glibc gives large blocks their own mappings, until the first block of their size is freed. */
static void mapped(int blocks)
{
    size_t before = mallinfo2().hblks;
    for (int block = 0; block < blocks; block++)
        bad += malloc(160 * 1024) == NULL;
    if (rank == 0)
        printf("%zu\n", mallinfo2().hblks - before);
}

static int tcp_sockets(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        int domain = 0;
        socklen_t length = sizeof domain;
        count += getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_INET;
    }
    return count;
}

static void connections(int calls)
{
    for (int call = 0; call < calls; call++) /* two ranks that connect at once close one connection later */
        MPI_Allreduce(sent, received, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    int mine = tcp_sockets();
    MPI_Gather(&mine, 1, MPI_INT, received, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int at = 0; rank == 0 && at < ranks; at++)
        printf("%d\n", received[at]);
}

static void idup(int calls)
{
    MPI_Comm dup;
    MPI_Request request;
    MPI_Comm_idup(MPI_COMM_WORLD, &dup, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int call = 0; call < calls; call++)
        gather(dup, 1024, 1, call);
    MPI_Comm_free(&dup);
}

static const struct {
    const char *name;
    void (*run)(int calls);
} programs[] = {
    {"blocking", blocking}, {"twice", twice}, {"nonblocking", nonblocking}, {"large", large},
    {"mixed", mixed}, {"duplicates", duplicates}, {"idup", idup}, {"reductions", reductions},
    {"mapped", mapped}, {"connections", connections},
};

int main(int argc, char **argv)
{
    setlocale(LC_ALL, "");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    received = malloc(MOST * (size_t)ranks * sizeof *received);
    const char *what = argc > 2 ? argv[1] : "";
    int calls = argc > 2 ? atoi(argv[2]) : 0;
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        if (strcmp(what, programs[i].name) == 0)
            programs[i].run(calls);
    if (bad != 0)
        fprintf(stderr, "# rank %d: %d elements are wrong\n", rank, bad);
    free(received);
    MPI_Finalize();
    return bad != 0;
}
