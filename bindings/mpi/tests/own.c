/*
 * own.c: reductions with operators and datatypes of the program's own, which are freed while reductions are in flight.
 *
 * The operator does not commute: the result shows the order of ranks. Prints TAP on rank 0.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#if MPI_VERSION >= 4 || OMPI_MAJOR_VERSION >= 5
#define INIT(Name) MPI_##Name##_init
#else
#include <mpi-ext.h>
#define INIT(Name) MPIX_##Name##_init
#endif

enum { PAIRS = 5000 };

/* The map x -> factor * x + term, modulo 2^32. */
struct map {
    unsigned factor, term;
};

static int rank, ranks, number, bad;

static void report_test(int good, const char *name)
{
    int all;
    MPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s %d - %s\n", all ? "ok" : "not ok", ++number, name);
    bad += !all;
}

static struct map composed(struct map first, struct map second)
{
    return (struct map){second.factor * first.factor, second.factor * first.term + second.term};
}

static void compose(void *first, void *second, int *count, MPI_Datatype *type)
{
    struct map *with = first, *into = second;
    (void)type;
    for (int i = 0; i < *count; i++)
        into[i] = composed(with[i], into[i]);
}

static struct map map_of(int of, int at)
{
    return (struct map){2u * (unsigned)of + 3u, (unsigned)(at * 7 + of)};
}

static int is_right(const struct map *result, int last)
{
    for (int at = 0; at < PAIRS; at++) {
        struct map expected = map_of(0, at);
        for (int of = 1; of <= last; of++)
            expected = composed(expected, map_of(of, at));
        if (result[at].factor != expected.factor || result[at].term != expected.term)
            return 0;
    }
    return 1;
}

static void make(MPI_Op *op, MPI_Datatype *type)
{
    MPI_Op_create(compose, 0, op);
    MPI_Type_contiguous(2, MPI_UNSIGNED, type);
    MPI_Type_commit(type);
}

static void free_both(MPI_Op *op, MPI_Datatype *type)
{
    MPI_Op_free(op);
    MPI_Type_free(type);
    bad += *op != MPI_OP_NULL || *type != MPI_DATATYPE_NULL;
}

int main(int argc, char **argv)
{
    MPI_Op op;
    MPI_Datatype type;
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int *everybody = malloc((size_t)ranks * sizeof(int));
    MPI_Allgather(&rank, 1, MPI_INT, everybody, 1, MPI_INT, MPI_COMM_WORLD);
    free(everybody);
    struct map *send = malloc(PAIRS * sizeof *send), *receive = calloc(PAIRS, sizeof *receive);
    for (int at = 0; at < PAIRS; at++)
        send[at] = map_of(rank, at);

    make(&op, &type);
    MPI_Allreduce(send, receive, PAIRS, type, op, MPI_COMM_WORLD);
    report_test(is_right(receive, ranks - 1), "blocking");
    MPI_Scan(send, receive, PAIRS, type, op, MPI_COMM_WORLD);
    report_test(is_right(receive, rank), "scan");
    MPI_Iallreduce(send, receive, PAIRS, type, op, MPI_COMM_WORLD, &request);
    free_both(&op, &type);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    report_test(is_right(receive, ranks - 1), "operator and datatype freed in flight");

    make(&op, &type);
    INIT(Allreduce)(send, receive, PAIRS, type, op, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    free_both(&op, &type);
    for (int turn = 0; turn < 3; turn++) {
        receive[PAIRS - 1].factor = 0;
        MPI_Start(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        report_test(is_right(receive, ranks - 1), "persistent, both freed before the start");
    }
    MPI_Request_free(&request);

    long double mine = rank + 0.5L, sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    report_test(sum == ranks * ranks / 2.0L, "long double");
    for (int i = 0; i < 400; i++) {
        make(&op, &type);
        MPI_Iallreduce(send, receive, PAIRS / 100, type, op, MPI_COMM_WORLD, &request);
        free_both(&op, &type);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    report_test(1, "400 operators come and go");
    free(send);
    free(receive);
    MPI_Finalize();
    return bad != 0;
}
