/*
 * reductions.c: barriers and reductions of the conformance program: every kind, operator and datatype, in place and
 * not, also of no elements, several at once, on communicators with another order of ranks; and reductions that pass
 * through.
 */
#include "conformance.h"

#include <complex.h>
#include <stdatomic.h>
#include <stdbool.h>

enum kind { REDUCE, ALLREDUCE, SCATTER, SCATTER_BLOCK, SCAN, EXSCAN, KINDS };

/* One reduction of ints by MPI_SUM, or by an operator of the program. */
struct call {
    MPI_Comm comm;
    enum kind kind;
    int me, members, root, form, total; /* elements that a rank contributes */
    int *counts;                        /* elements that each rank receives */
    int *send, *receive;
    MPI_Request request;
};

static int contribution(int of, int at, int turn)
{
    return (of + 2) * 37 + at * (of + 1) + turn;
}

/* The sum of the contributions of ranks `from` to `to`. */
static int summed(int from, int to, int at, int turn)
{
    int sum = 0;
    for (int of = from; of < to; of++)
        sum += contribution(of, at, turn);
    return sum;
}

static struct call call_of(MPI_Comm comm, enum kind kind, int root, int count, int form)
{
    struct call call = {.comm = comm, .kind = kind, .root = root, .form = form, .request = MPI_REQUEST_NULL};
    MPI_Comm_rank(comm, &call.me);
    MPI_Comm_size(comm, &call.members);
    call.counts = fresh((size_t)call.members * sizeof(int));
    call.total = 0;
    for (int of = 0; of < call.members; of++) {
        call.counts[of] = kind == SCATTER ? uneven(of, 1, count) : count;
        call.total += call.counts[of];
    }
    if (kind != SCATTER && kind != SCATTER_BLOCK)
        call.total = count;
    call.send = fresh((size_t)call.total * sizeof(int));
    call.receive = fresh(((size_t)call.total + 1) * sizeof(int));
    return call;
}

static void call_free(struct call *call)
{
    free(call->counts);
    free(call->send);
    free(call->receive);
}

static int in_place(const struct call *call)
{
    return call->form & IN_PLACE && (call->kind != REDUCE || call->me == call->root);
}

static void fill(struct call *call, int turn)
{
    memset(call->receive, 0xee, ((size_t)call->total + 1) * sizeof(int));
    for (int at = 0; at < call->total; at++)
        (in_place(call) ? call->receive : call->send)[at] = contribution(call->me, at, turn);
}

static int post(struct call *call)
{
    const void *from = in_place(call) ? MPI_IN_PLACE : call->send;
    int *to = call->kind == REDUCE && call->me != call->root ? NULL : call->receive, count = call->total;
    MPI_Comm comm = call->comm;
    MPI_Op op = MPI_SUM;
    MPI_Request *request = &call->request;
    switch (call->kind) {
    case REDUCE:
        return POST(call->form, Reduce, reduce, request, from, to, count, MPI_INT, op, call->root, comm);
    case ALLREDUCE:
        return POST(call->form, Allreduce, allreduce, request, from, to, count, MPI_INT, op, comm);
    case SCATTER:
        return POST(call->form, Reduce_scatter, reduce_scatter, request, from, to, call->counts, MPI_INT, op, comm);
    case SCATTER_BLOCK:
        count = call->counts[0];
        return POST(call->form, Reduce_scatter_block, reduce_scatter_block, request, from, to, count, MPI_INT, op,
                    comm);
    case SCAN:
        return POST(call->form, Scan, scan, request, from, to, count, MPI_INT, op, comm);
    default:
        return POST(call->form, Exscan, exscan, request, from, to, count, MPI_INT, op, comm);
    }
}

static void check(struct call *call, int turn)
{
    int first = 0, count = call->total, to = call->members, bad = 0;
    if (call->kind == SCATTER || call->kind == SCATTER_BLOCK) {
        for (int of = 0; of < call->me; of++)
            first += call->counts[of];
        count = call->counts[call->me];
    }
    if (call->kind == SCAN || call->kind == EXSCAN)
        to = call->me + (call->kind == SCAN);
    if (to == 0 || (call->kind == REDUCE && call->me != call->root))
        return; /* nothing is received */
    for (int at = 0; at < count; at++)
        bad += call->receive[at] != summed(0, to, first + at, turn);
    CHECK(bad == 0);
    int untouched;
    memset(&untouched, 0xee, sizeof untouched);
    CHECK(call->receive[call->total] == untouched);
}

/* One reduction of each kind at once. */
static void of_every_kind(MPI_Comm comm, int count, int form)
{
    struct call calls[KINDS];
    int members;
    MPI_Comm_size(comm, &members);
    if (form & (STRIDED | NEGATIVE))
        return; /* there are no displacements */
    for (int kind = 0; kind < KINDS; kind++) {
        calls[kind] = call_of(comm, (enum kind)kind, count % members, count, form);
        fill(&calls[kind], kind);
        CHECK(post(&calls[kind]) == MPI_SUCCESS);
    }
    for (int kind = KINDS - 1; kind >= 0; kind--) {
        CHECK(MPI_Wait(&calls[kind].request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
        check(&calls[kind], kind);
        call_free(&calls[kind]);
    }
}

void reductions(void)
{
    in_every_form(of_every_kind);
}

/* No rank leaves a barrier before all have entered. */
static void blocking_barriers(void)
{
    atomic_int *entered;
    MPI_Aint bytes;
    MPI_Win window;
    int unit;
    MPI_Win_allocate_shared(rank == 0 ? sizeof *entered : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &entered, &window);
    MPI_Win_shared_query(window, 0, &bytes, &unit, &entered);
    if (rank == 0)
        atomic_init(entered, 0);
    MPI_Win_fence(0, window);
    for (int turn = 0; turn < 50; turn++) {
        atomic_fetch_add(entered, 1);
        CHECK(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
        CHECK(atomic_load(entered) >= (turn + 1) * ranks);
    }
    MPI_Win_free(&window);
}

/* The late rank enters after all others have reported that they entered and still wait. */
static void late_barrier(int late)
{
    int flag = 0;
    MPI_Request request;
    if (rank == late)
        for (int of = 1; of < ranks; of++)
            MPI_Recv(NULL, 0, MPI_INT, MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(MPI_Ibarrier(MPI_COMM_WORLD, &request) == MPI_SUCCESS);
    if (rank != late) {
        for (int i = 0; i < 100 && !flag; i++)
            CHECK(MPI_Test(&request, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS);
        CHECK(!flag);
        MPI_Send(NULL, 0, MPI_INT, late, 5, MPI_COMM_WORLD);
    }
    CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
}

void barriers(void)
{
    blocking_barriers();
    for (int late = 0; late < ranks; late++)
        late_barrier(late);
}

/* ---- operators and datatypes: a reduction of two elements compared with C ---- */

#define MOST_BYTES 16

/* Whether the first two ranks' values, small and positive, are combined as in C; other ranks contribute neutral
 * elements. */
struct typed {
    MPI_Datatype type;
    size_t bytes;
    void (*put)(void *to, int value, int index);
    int (*get)(const void *from, int *index);
};

#define ELEMENT(name, type, made_of, number_in, index_in)                                                              \
    static void put_##name(void *to, int number, int index)                                                            \
    {                                                                                                                  \
        type made = made_of;                                                                                           \
        (void)index;                                                                                                   \
        memcpy(to, &made, sizeof made);                                                                                \
    }                                                                                                                  \
    static int get_##name(const void *from, int *index)                                                                \
    {                                                                                                                  \
        type made;                                                                                                     \
        memcpy(&made, from, sizeof made);                                                                              \
        *index = index_in;                                                                                             \
        return (int)number_in;                                                                                         \
    }
#define TYPED(name, c) ELEMENT(name, c, (c)number, made, 0)
#define PAIRED(name, c)                                                                                                \
    struct name {                                                                                                      \
        c number;                                                                                                      \
        int index;                                                                                                     \
    };                                                                                                                 \
    ELEMENT(name, struct name, ((struct name){(c)number, index}), made.number, made.index)
TYPED(i8, signed char)
TYPED(i16, short)
TYPED(i32, int)
TYPED(i64, long)
TYPED(u8, unsigned char)
TYPED(u16, unsigned short)
TYPED(u32, unsigned)
TYPED(u64, unsigned long)
TYPED(f32, float)
TYPED(f64, double)
TYPED(c32, float complex)
TYPED(c64, double complex)
TYPED(boolean, bool)
TYPED(wide, long double)
PAIRED(float_int, float)
PAIRED(double_int, double)
PAIRED(long_int, long)
PAIRED(two_int, int)
PAIRED(short_int, short)

#define OF(mpi, name, c) {mpi, sizeof(c), put_##name, get_##name}

static int combined(MPI_Op op, int a, int b)
{
    if (op == MPI_SUM)
        return a + b;
    if (op == MPI_PROD)
        return a * b;
    if (op == MPI_MIN || op == MPI_MINLOC)
        return a < b ? a : b;
    if (op == MPI_MAX || op == MPI_MAXLOC)
        return a > b ? a : b;
    if (op == MPI_BAND)
        return a & b;
    if (op == MPI_BOR)
        return a | b;
    if (op == MPI_BXOR)
        return a ^ b;
    if (op == MPI_LAND)
        return a && b;
    if (op == MPI_LOR)
        return a || b;
    return !a != !b;
}

static void operator_on(MPI_Op op, const struct typed *of)
{
    enum { ELEMENTS = 5 };
    char send[ELEMENTS * MOST_BYTES], receive[ELEMENTS * MOST_BYTES];
    MPI_Comm two;
    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &two);
    memset(send, 0, sizeof send);
    memset(receive, 0, sizeof receive);
    int of_logical = of->put == put_boolean, bad = 0;
    for (int at = 0; at < ELEMENTS; at++) {
        int number = (rank % 2 == 0 ? at : (at * 3 + 2) % 5) % (of_logical ? 2 : 5);
        of->put(send + (size_t)at * of->bytes, number, 10 - rank % 2);
    }
    CHECK(MPI_Allreduce(send, receive, ELEMENTS, of->type, op, two) == MPI_SUCCESS);
    for (int at = 0; at < ELEMENTS; at++) {
        int limit = of_logical ? 2 : 5, a = at % limit, b = (at * 3 + 2) % 5 % limit, index;
        int got = of->get(receive + (size_t)at * of->bytes, &index), expected = combined(op, a, b);
        bad += got != expected;
        if (op == MPI_MINLOC || op == MPI_MAXLOC)
            bad += index != (a == b || expected == b ? 9 : 10);
    }
    CHECK(bad == 0);
    MPI_Comm_free(&two);
}

#define EACH(ops, types)                                                                                               \
    for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)                                                              \
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)                                                      \
    operator_on(ops[o], &types[t])

void operators(void)
{
    const struct typed integers[] = {
        OF(MPI_SIGNED_CHAR, i8, char),        OF(MPI_SHORT, i16, short),         OF(MPI_INT, i32, int),
        OF(MPI_LONG, i64, long),              OF(MPI_UNSIGNED_CHAR, u8, char),   OF(MPI_UNSIGNED_SHORT, u16, short),
        OF(MPI_UNSIGNED, u32, int),           OF(MPI_UNSIGNED_LONG, u64, long),  OF(MPI_INT64_T, i64, long),
        OF(MPI_UINT8_T, u8, char),            OF(MPI_AINT, i64, long),
    };
    const struct typed floats[] = {OF(MPI_FLOAT, f32, float), OF(MPI_DOUBLE, f64, double),
                                   OF(MPI_LONG_DOUBLE, wide, long double)};
    const struct typed complexes[] = {OF(MPI_C_FLOAT_COMPLEX, c32, float complex),
                                      OF(MPI_C_DOUBLE_COMPLEX, c64, double complex)};
    const struct typed pairs[] = {
        OF(MPI_FLOAT_INT, float_int, struct float_int), OF(MPI_DOUBLE_INT, double_int, struct double_int),
        OF(MPI_LONG_INT, long_int, struct long_int),    OF(MPI_2INT, two_int, struct two_int),
        OF(MPI_SHORT_INT, short_int, struct short_int),
    };
    const struct typed bytes[] = {OF(MPI_BYTE, u8, char)}, logicals[] = {OF(MPI_C_BOOL, boolean, bool)};
    const MPI_Op arithmetic[] = {MPI_SUM, MPI_PROD}, order[] = {MPI_MIN, MPI_MAX}, places[] = {MPI_MINLOC, MPI_MAXLOC};
    const MPI_Op bits[] = {MPI_BAND, MPI_BOR, MPI_BXOR}, logic[] = {MPI_LAND, MPI_LOR, MPI_LXOR};
    EACH(arithmetic, integers);
    EACH(order, integers);
    EACH(bits, integers);
    EACH(logic, integers);
    EACH(arithmetic, floats);
    EACH(order, floats);
    EACH(arithmetic, complexes);
    EACH(places, pairs);
    EACH(bits, bytes);
    EACH(logic, logicals);
}

/* ---- reductions that pass through ---- */

/* Keeps the left operand's tens and takes the right one's ones: not commutative. */
static void tens_and_ones(void *with, void *into, int *count, MPI_Datatype *type)
{
    int *left = with, *right = into, size;
    MPI_Type_size(*type, &size);
    for (int at = 0; at < *count * size / (int)sizeof(int); at++)
        right[at] = left[at] / 10 * 10 + right[at] % 10;
}

void own_operators(void)
{
    MPI_Op op;
    MPI_Datatype pair;
    int send[6], receive[6], bad = 0;
    MPI_Request requests[2];
    MPI_Op_create(tens_and_ones, 0, &op);
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_commit(&pair);
    for (int at = 0; at < 6; at++)
        send[at] = (rank + 1) * 10 + rank;
    CHECK(MPI_Iallreduce(send, receive, 3, pair, op, MPI_COMM_WORLD, &requests[0]) == MPI_SUCCESS);
    int sum = -1, one = 1;
    CHECK(MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[1]) == MPI_SUCCESS);
    CHECK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
    for (int at = 0; at < 6; at++)
        bad += receive[at] != 10 + ranks - 1;
    CHECK(bad == 0 && sum == ranks);
    MPI_Op_free(&op);
    MPI_Type_free(&pair);
}

/* ---- persistent reductions ---- */

void persistent_reductions(void)
{
    struct call calls[2 * KINDS];
    MPI_Request requests[2 * KINDS + 1];
    for (int i = 0; i < 2 * KINDS; i++) {
        int form = PERSISTENT | (i < KINDS ? 0 : IN_PLACE);
        calls[i] = call_of(MPI_COMM_WORLD, (enum kind)(i % KINDS), i % ranks, 700, form);
        CHECK(post(&calls[i]) == MPI_SUCCESS);
        requests[i] = calls[i].request;
    }
    CHECK(PERSISTENT_INIT(Barrier)(MPI_COMM_WORLD, MPI_INFO_NULL, &requests[2 * KINDS]) == MPI_SUCCESS);
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < 2 * KINDS; i++)
            fill(&calls[i], turn + i);
        CHECK(MPI_Startall(2 * KINDS + 1, requests) == MPI_SUCCESS);
        CHECK(MPI_Waitall(2 * KINDS + 1, requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
        for (int i = 0; i < 2 * KINDS; i++)
            check(&calls[i], turn + i);
    }
    for (int i = 0; i < 2 * KINDS + 1; i++)
        CHECK(MPI_Request_free(&requests[i]) == MPI_SUCCESS);
    for (int i = 0; i < 2 * KINDS; i++)
        call_free(&calls[i]);
}
