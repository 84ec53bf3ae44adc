/*
 * conformance.c: valid MPI uses of MPI_(I)allgather, MPI_(I)bcast, MPI_(I)alltoall(v) and their requests.
 *
 * The program does not depend on Outboard and also passes natively. The argument "native" leaves out the freeing of
 * requests in flight, which MPI calls erroneous for collectives and Open MPI rejects. The argument "single" requests no
 * threads. Prints TAP on rank 0; exits 1 if a test failed. Run with an even number of ranks, at least 2.
 */
#include "conformance.h"

#include <pthread.h>

int rank, ranks;
_Thread_local int failures;
int native;
static int provided;

int value(int of, int at, int call)
{
    return of * 1000003 + at * 17 + call;
}

void fill_with(int *send, int count, int of, int call)
{
    for (int at = 0; at < count; at++)
        send[at] = value(of, at, call);
}

int wrong_in(const int *received, int count, int members, int call)
{
    int bad = 0;
    for (int of = 0; of < members; of++)
        for (int at = 0; at < count; at++)
            bad += received[of * count + at] != value(of, at, call);
    return bad;
}

void *fresh(size_t bytes)
{
    void *memory = malloc(bytes == 0 ? 1 : bytes);
    memset(memory, 0xee, bytes == 0 ? 1 : bytes);
    return memory;
}

/* ---- plain calls ---- */

void gather_on(MPI_Comm comm, int count, int in_place, int blocking)
{
    int me, members;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &members);
    int *send = fresh((size_t)count * sizeof(int)), *receive = fresh((size_t)count * (size_t)members * sizeof(int));
    fill_with(in_place ? receive + me * count : send, count, me, count);
    const void *from = in_place ? MPI_IN_PLACE : send;
    CARRY_OUT(blocking ? BLOCKING : 0, Allgather, allgather, from, count, MPI_INT, receive, count, MPI_INT, comm);
    CHECK(wrong_in(receive, count, members, count) == 0);
    free(send);
    free(receive);
}

static void sizes(void)
{
    static const int counts[] = {0, 1, 2, 7, 255, 4096, 65537};
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int form = 0; form < 4; form++)
            gather_on(MPI_COMM_WORLD, counts[i], form & 1, form >> 1);
}

/* ---- datatypes: elements are gathered as type pairs and read back through MPI_Pack ---- */

static void as_type(MPI_Datatype send_type, MPI_Datatype receive_type, int count, int in_place)
{
    MPI_Aint lb, extent, send_lb, send_extent;
    int size;
    MPI_Type_commit(&send_type);
    MPI_Type_commit(&receive_type);
    MPI_Type_get_extent(receive_type, &lb, &extent);
    MPI_Type_get_extent(send_type, &send_lb, &send_extent);
    MPI_Type_size(receive_type, &size);
    size_t block = (size_t)size * (size_t)count, room = 65536;
    unsigned char *packed = fresh(block * (size_t)ranks), *expected = fresh(block * (size_t)ranks);
    unsigned char *send = fresh(room), *receive = fresh(room);
    unsigned char *send_at = send + room / 2, *receive_at = receive + room / 2;
    int position = 0;
    for (size_t at = 0; at < block * (size_t)ranks; at++)
        expected[at] = (unsigned char)(at * 7 + at / 251);
    unsigned char *mine = expected + block * (size_t)rank;
    if (in_place)
        MPI_Unpack(mine, (int)block, &position, receive_at + (MPI_Aint)rank * count * extent, count, receive_type,
                   MPI_COMM_SELF);
    else
        MPI_Unpack(mine, (int)block, &position, send_at, count, send_type, MPI_COMM_SELF);
    MPI_Request request;
    MPI_Iallgather(in_place ? MPI_IN_PLACE : send_at, count, send_type, receive_at, count, receive_type,
                   MPI_COMM_WORLD, &request);
    MPI_Datatype freed = receive_type;
    MPI_Type_dup(receive_type, &receive_type);
    MPI_Type_free(&freed);
    CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    position = 0;
    MPI_Pack(receive_at, count * ranks, receive_type, packed, (int)block * ranks, &position, MPI_COMM_SELF);
    CHECK(memcmp(packed, expected, block * (size_t)ranks) == 0);
    MPI_Type_free(&receive_type);
    MPI_Type_free(&send_type);
    free(packed);
    free(expected);
    free(send);
    free(receive);
}

static MPI_Datatype make_type(int kind)
{
    MPI_Datatype type, inner;
    int blocks[3] = {2, 1, 1}, places[4] = {3, 0, 2, 1};
    MPI_Aint offsets[3] = {0, 12, 24};
    MPI_Datatype parts[3] = {MPI_INT, MPI_INT, MPI_INT};
    switch (kind) {
    case 0:
        MPI_Type_contiguous(4, MPI_INT, &type);
        break;
    case 1:
        MPI_Type_vector(2, 2, 3, MPI_INT, &type);
        break;
    case 2:
        MPI_Type_create_struct(3, blocks, offsets, parts, &type);
        break;
    case 3: /* fills its extent, in another order */
        MPI_Type_create_indexed_block(4, 1, places, MPI_INT, &type);
        break;
    case 4:
        MPI_Type_contiguous(4, MPI_INT, &inner);
        MPI_Type_create_resized(inner, -8, 40, &type);
        MPI_Type_free(&inner);
        break;
    case 5:
        MPI_Type_create_hvector(4, 1, -4, MPI_INT, &type);
        break;
    case 6:
        MPI_Type_contiguous(4, MPI_INT, &inner);
        MPI_Type_dup(inner, &type);
        MPI_Type_free(&inner);
        break;
    case 7: /* starts away from its buffer address, without gaps */
        offsets[0] = 20;
        blocks[0] = 4;
        MPI_Type_create_struct(1, blocks, offsets, parts, &type);
        break;
    default: /* elements overlap when several are sent side by side: sent only */
        MPI_Type_contiguous(4, MPI_INT, &inner);
        MPI_Type_create_resized(inner, 0, 16, &type);
        MPI_Type_free(&inner);
    }
    return type;
}

static void datatypes(void)
{
    for (int from = 0; from < 9; from++)
        for (int into = 0; into < 9; into++)
            for (int count = 1; count < 8; count += 3)
                as_type(make_type(from), make_type(into), count, 0);
    for (int into = 0; into < 9; into++)
        as_type(make_type(0), make_type(into), 3, 1);
}

/* A block of elements that follow one another backwards. */
static void backwards(void)
{
    enum { COUNT = 9 };
    int *send = fresh(COUNT * (size_t)ranks * sizeof(int)), receive[COUNT], bad = 0;
    MPI_Datatype element, block;
    MPI_Type_create_resized(MPI_INT, 0, -(MPI_Aint)sizeof(int), &element);
    MPI_Type_contiguous(COUNT, element, &block);
    MPI_Type_commit(&block);
    for (int to = 0; to < ranks; to++)
        fill_with(&send[to * COUNT], COUNT, to, 5);
    CHECK(MPI_Scatter(send, COUNT, MPI_INT, &receive[COUNT - 1], 1, block, 1, MPI_COMM_WORLD) == MPI_SUCCESS);
    for (int at = 0; at < COUNT; at++)
        bad += receive[COUNT - 1 - at] != value(rank, at, 5);
    CHECK(bad == 0);
    MPI_Type_free(&block);
    MPI_Type_free(&element);
    free(send);
}

static void absolute_addresses(void)
{
    int *send = fresh(8 * sizeof(int)), *receive = fresh(8 * (size_t)ranks * sizeof(int)), length = 8;
    MPI_Aint at;
    MPI_Datatype from, into;
    fill_with(send, 8, rank, 3);
    MPI_Get_address(send, &at);
    MPI_Type_create_hindexed(1, &length, &at, MPI_INT, &from);
    MPI_Get_address(receive, &at);
    MPI_Type_create_hindexed(1, &length, &at, MPI_INT, &into);
    MPI_Type_commit(&from);
    MPI_Type_commit(&into);
    CHECK(MPI_Allgather(MPI_BOTTOM, 1, from, MPI_BOTTOM, 1, into, MPI_COMM_WORLD) == MPI_SUCCESS);
    CHECK(wrong_in(receive, 8, ranks, 3) == 0);
    MPI_Type_free(&from);
    MPI_Type_free(&into);
    free(send);
    free(receive);
}

/* ---- communicators ---- */

static void use_and_free(MPI_Comm comm)
{
    if (comm == MPI_COMM_NULL)
        return;
    for (int form = 0; form < 4; form++)
        gather_on(comm, 321, form & 1, form >> 1);
    MPI_Comm_free(&comm);
    CHECK(comm == MPI_COMM_NULL);
}

static void plain_constructors(void)
{
    MPI_Comm made;
    MPI_Group all, part;
    MPI_Comm_dup(MPI_COMM_WORLD, &made);
    use_and_free(made);
    MPI_Comm_dup_with_info(MPI_COMM_WORLD, MPI_INFO_NULL, &made);
    use_and_free(made);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &made);
    use_and_free(made);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 1, rank, &made);
    use_and_free(made);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &made);
    use_and_free(made);
    int range[1][3] = {{0, ranks / 2, 1}};
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_range_incl(all, 1, range, &part);
    MPI_Comm_create(MPI_COMM_WORLD, part, &made);
    use_and_free(made);
    if (rank <= ranks / 2) {
        MPI_Comm_create_group(MPI_COMM_WORLD, part, 5, &made);
        use_and_free(made);
    }
    MPI_Group_free(&all);
    MPI_Group_free(&part);
}

static void topologies(void)
{
    MPI_Comm grid, row, made;
    int dims[2] = {2, ranks / 2}, periods[2] = {1, 0}, remain[2] = {0, 1}, index[2] = {1, 2}, edges[2] = {1, 0};
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, one = 1;
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 1, &grid);
    MPI_Cart_sub(grid, remain, &row);
    use_and_free(row);
    use_and_free(grid);
    MPI_Graph_create(MPI_COMM_WORLD, 2, index, edges, 0, &made);
    use_and_free(made);
    MPI_Dist_graph_create(MPI_COMM_WORLD, 1, &rank, &one, &next, &one, MPI_INFO_NULL, 0, &made);
    use_and_free(made);
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, &before, &one, 1, &next, &one, MPI_INFO_NULL, 0, &made);
    use_and_free(made);
}

static void unlike_others(void)
{
    MPI_Comm half, inter, merged, dup;
    MPI_Request request;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 7, &inter);
    int mine = rank, *far = fresh((size_t)ranks * sizeof(int));
    CHECK(MPI_Allgather(&mine, 1, MPI_INT, far, 1, MPI_INT, inter) == MPI_SUCCESS);
    for (int i = 0; i < ranks / 2; i++)
        CHECK(far[i] == 2 * i + 1 - rank % 2);
    MPI_Intercomm_merge(inter, rank % 2, &merged);
    use_and_free(merged);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
    MPI_Comm_idup(MPI_COMM_WORLD, &dup, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    use_and_free(dup);
    gather_on(MPI_COMM_SELF, 10, 0, 0);
    free(far);
}

/* MPI allows a program to free a communicator during a collective: the collective on it still completes. */
static void freed_communicator(void)
{
    int send[50], *receive = fresh(50 * (size_t)ranks * sizeof(int));
    MPI_Comm dup;
    MPI_Request request;
    fill_with(send, 50, rank, 9);
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    MPI_Iallgather(send, 50, MPI_INT, receive, 50, MPI_INT, dup, &request);
    MPI_Comm_free(&dup);
    CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    CHECK(wrong_in(receive, 50, ranks, 9) == 0);
    free(receive);
}

static int call_once_more(MPI_Comm comm, int keyval, void *value, void *extra)
{
    (void)keyval;
    (void)value;
    (void)extra;
    return MPI_Barrier(comm);
}

/* The program's attribute was set first, so its callback runs after the shim's. */
static void called_while_freed(void)
{
    MPI_Comm dup;
    int keyval;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, call_once_more, &keyval, NULL);
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    MPI_Comm_set_attr(dup, keyval, NULL);
    use_and_free(dup);
    MPI_Comm_free_keyval(&keyval);
}

/* ---- threads ---- */

static void *thread_body(void *comm)
{
    failures = 0;
    for (int turn = 0; turn < 40; turn++) {
        MPI_Request requests[3];
        int send[64], *first = fresh(64 * (size_t)ranks * sizeof(int)), message = -1;
        int *second = fresh(64 * (size_t)ranks * sizeof(int)), me, members;
        MPI_Comm_rank(*(MPI_Comm *)comm, &me);
        MPI_Comm_size(*(MPI_Comm *)comm, &members);
        fill_with(send, 64, me, turn);
        MPI_Irecv(&message, 1, MPI_INT, (me + members - 1) % members, turn, *(MPI_Comm *)comm, &requests[1]);
        MPI_Iallgather(send, 64, MPI_INT, first, 64, MPI_INT, *(MPI_Comm *)comm, &requests[0]);
        MPI_Iallgather(send, 64, MPI_INT, second, 64, MPI_INT, *(MPI_Comm *)comm, &requests[2]);
        if (turn % 3 == 0)
            CHECK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE) == MPI_SUCCESS);
        if (turn % 3 == 1 && !native)
            MPI_Request_free(&requests[0]);
        MPI_Send(&me, 1, MPI_INT, (me + 1) % members, turn, *(MPI_Comm *)comm);
        CHECK(MPI_Waitall(3, requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
        gather_on(*(MPI_Comm *)comm, 33, 0, 1); /* ordered behind the request freed early */
        CHECK(wrong_in(second, 64, members, turn) == 0 && message == (me + members - 1) % members);
        if (turn % 3 != 1 || native) {
            CHECK(wrong_in(first, 64, members, turn) == 0);
            free(first);
        } /* else MPI does not show that the buffer is free before MPI_Finalize */
        free(second);
    }
    int *count = malloc(sizeof *count);
    *count = failures;
    return count;
}

static void two_threads(void)
{
    MPI_Comm comms[2];
    pthread_t threads[2];
    if (provided < MPI_THREAD_MULTIPLE)
        return;
    MPI_Comm_dup(MPI_COMM_WORLD, &comms[0]);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comms[1]);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, thread_body, &comms[i]);
    for (int i = 0; i < 2; i++) {
        void *count;
        pthread_join(threads[i], &count);
        failures += *(int *)count;
        free(count);
        MPI_Comm_free(&comms[i]);
    }
}

/* Contiguous on the root, with gaps elsewhere if `strided`. Signatures and counts are equal on all ranks; counts are
 * equal because Open MPI's own algorithms cut by counts. */
static void broadcast_on(MPI_Comm comm, int count, int root, int strided, int blocking)
{
    int me, bad = 0;
    MPI_Comm_rank(comm, &me);
    int stride = strided && me != root ? 3 : 1, cells = count * 3 + 1;
    int *cell = fresh((size_t)cells * sizeof(int));
    int untouched = cell[cells - 1];
    MPI_Datatype type = spread(stride);
    if (me == root)
        fill_with(cell, count, root, count);
    CARRY_OUT(blocking ? BLOCKING : 0, Bcast, bcast, cell, count, type, root, comm);
    for (int at = 0; at < cells; at++) {
        int received = at % stride == 0 && at / stride < count;
        bad += cell[at] != (received ? value(root, at / stride, count) : untouched);
    }
    CHECK(bad == 0);
    spread_free(&type);
    free(cell);
}

static void broadcasts_on(MPI_Comm comm, int count, int form)
{
    int members;
    MPI_Comm_size(comm, &members);
    for (int root = 0; root < members && !(form & (IN_PLACE | NEGATIVE)); root++)
        broadcast_on(comm, count, root, form & STRIDED, form & BLOCKING);
}

static void broadcasts(void)
{
    in_every_form(broadcasts_on);
}

/* One call on memory of MPI_Alloc_mem, which is used again and again at the same addresses. */
static void allocate_and_gather(int count, int call)
{
    int *send, *receive;
    MPI_Aint bytes = (MPI_Aint)count * (MPI_Aint)sizeof(int);
    CHECK(MPI_Alloc_mem(bytes, MPI_INFO_NULL, &send) == MPI_SUCCESS);
    CHECK(MPI_Alloc_mem(bytes * ranks, MPI_INFO_NULL, &receive) == MPI_SUCCESS);
    memset(receive, 0xee, (size_t)bytes * (size_t)ranks);
    fill_with(send, count, rank, call);
    CHECK(MPI_Allgather(send, count, MPI_INT, receive, count, MPI_INT, MPI_COMM_WORLD) == MPI_SUCCESS);
    CHECK(wrong_in(receive, count, ranks, call) == 0);
    CHECK(MPI_Free_mem(send) == MPI_SUCCESS);
    /* One buffer is from MPI_Alloc_mem, the other is not. */
    int *plain = fresh((size_t)bytes);
    fill_with(plain, count, rank, call + 1);
    CHECK(MPI_Allgather(plain, count, MPI_INT, receive, count, MPI_INT, MPI_COMM_WORLD) == MPI_SUCCESS);
    CHECK(wrong_in(receive, count, ranks, call + 1) == 0);
    free(plain);
    CHECK(MPI_Free_mem(receive) == MPI_SUCCESS);
}

static void allocated_memory(void)
{
    static const int counts[] = {1, 1023, 1024, 5000, 300000};
    for (int round = 0; round < 50; round++)
        allocate_and_gather(counts[round % (int)(sizeof counts / sizeof *counts)], 3 * round);
    /* More allocations at once than the service process may map. */
    int *many[400];
    for (int i = 0; i < 400; i++) {
        CHECK(MPI_Alloc_mem(8192, MPI_INFO_NULL, &many[i]) == MPI_SUCCESS);
        memset(many[i], i, 8192);
    }
    for (int i = 0; i < 400; i++) {
        CHECK(((unsigned char *)many[i])[8191] == (unsigned char)i);
        CHECK(MPI_Free_mem(many[i]) == MPI_SUCCESS);
    }
}

/* Leaves a collective in flight for MPI_Finalize. */
static void leave_in_flight(void)
{
    int *send = fresh(100 * sizeof(int)), *receive = fresh(100 * (size_t)ranks * sizeof(int));
    MPI_Comm *kept = fresh(sizeof *kept);
    MPI_Request request;
    if (native)
        return;
    MPI_Comm_dup(MPI_COMM_WORLD, kept);
    fill_with(send, 100, rank, 1);
    MPI_Iallgather(send, 100, MPI_INT, receive, 100, MPI_INT, *kept, &request);
    MPI_Request_free(&request);
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"every size, in place and not, blocking and not", sizes},
    {"every MPI_Wait and MPI_Test form, alone and mixed with native requests", request_forms},
    {"requests freed early", freed_early},
    {"more requests in flight than a service process takes", many_in_flight},
    {"datatypes, every pair", datatypes},
    {"datatypes that lie backwards", backwards},
    {"absolute addresses", absolute_addresses},
    {"communicators from plain constructors", plain_constructors},
    {"communicators with topologies", topologies},
    {"intercommunicators, idup and one rank", unlike_others},
    {"communicator freed before its request", freed_communicator},
    {"broadcasts from every root, with gaps and without", broadcasts},
    {"allgathers of uneven blocks, in place and not, with gaps", uneven_gathers},
    {"gathers in place of one element with a gap", padded_gathers},
    {"exchanges, even and uneven, in place and not, with gaps", exchanges},
    {"gathers at every root, even and uneven, in place and not", gathers_at_a_root},
    {"scatters from every root, even and uneven, in place and not", scatters_from_a_root},
    {"barriers wait for all", barriers},
    {"reductions of every kind, in place and not, blocking and not", reductions},
    {"every operator on every datatype that MPI defines it for", operators},
    {"operators and datatypes of the program's own", own_operators},
    {"persistent reductions and barriers", persistent_reductions},
    {"persistent collectives, started again and again", persistent_collectives},
    {"persistent collectives, started in another order on each rank", persistent_in_any_order},
    {"a callback calls on the communicator that is freed", called_while_freed},
    {"memory of MPI_Alloc_mem", allocated_memory},
    {"two threads on two communicators", two_threads},
    {"left in flight at the end", leave_in_flight},
};

int main(int argc, char **argv)
{
    int count = sizeof tests / sizeof *tests, bad = 0;
    int single = 0;
    for (int i = 1; i < argc; i++) {
        single |= strcmp(argv[i], "single") == 0;
        native |= strcmp(argv[i], "native") == 0;
    }
    if (single) {
        MPI_Init(&argc, &argv);
        MPI_Query_thread(&provided);
    } else {
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 2 || ranks % 2 != 0) {
        fprintf(stderr, "conformance: run with an even number of ranks, not %d\n", ranks);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (rank == 0)
        printf("1..%d\n", count);
    for (int i = 0; i < count; i++) {
        int mine, all;
        failures = 0;
        tests[i].run();
        mine = failures;
        MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        bad += all != 0;
        if (rank == 0)
            printf("%s %d - %s\n", all == 0 ? "ok" : "not ok", i + 1, tests[i].name);
        fflush(stdout);
    }
    MPI_Finalize();
    return bad != 0;
}
