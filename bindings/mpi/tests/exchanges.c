/*
 * exchanges.c: MPI_(I)alltoall(v) and MPI_(I)allgatherv of the conformance program: even and uneven blocks, with gaps,
 * of types with holes, in place, with displacements below zero, on communicators whose ranks are in another order.
 */
#include "conformance.h"

int uneven(int from, int to, int most)
{
    return (from * 3 + to * 5) % 4 * most / 3;
}

MPI_Datatype spread(int stride)
{
    MPI_Datatype type = MPI_INT;
    if (stride > 1) {
        MPI_Type_create_resized(MPI_INT, 0, stride * (MPI_Aint)sizeof(int), &type);
        MPI_Type_commit(&type);
    }
    return type;
}

void spread_free(MPI_Datatype *type)
{
    if (*type != MPI_INT)
        MPI_Type_free(type);
}

struct blocks blocks_of(int members, const int *counts, int stride, int negative)
{
    struct blocks made = {.stride = stride, .type = spread(stride)};
    made.counts = fresh((size_t)members * sizeof(int));
    made.displacements = fresh((size_t)members * sizeof(int));
    for (int of = members - 1; of >= 0; of--) {
        made.counts[of] = counts[of];
        made.displacements[of] = made.total;
        made.total += counts[of] + 1;
    }
    for (int of = 0; negative && of < members; of++)
        made.displacements[of] -= made.total;
    made.cells = fresh((size_t)made.total * (size_t)stride * sizeof(int));
    return made;
}

void blocks_free(struct blocks *made)
{
    spread_free(&made->type);
    free(made->cells);
    free(made->counts);
    free(made->displacements);
}

int *origin(const struct blocks *of, int negative)
{
    return of->cells + (negative ? (size_t)of->total * (size_t)of->stride : 0);
}

int exchanged_value(int from, int to, int at)
{
    return value(from, at, to * 7919 + 1);
}

int block(struct blocks *in, int of, int from, int to, int negative, int check)
{
    int bad = 0;
    for (int at = 0; at < in->counts[of]; at++) {
        int *cell = origin(in, negative) + (in->displacements[of] + at) * in->stride;
        if (check)
            bad += *cell != exchanged_value(from, to, at);
        else
            *cell = exchanged_value(from, to, at);
        if (check)
            memset(cell, 0xee, sizeof *cell);
    }
    return bad;
}

int something_between(const struct blocks *in)
{
    int untouched;
    memset(&untouched, 0xee, sizeof untouched);
    for (int at = 0; at < in->total * in->stride; at++)
        if (in->cells[at] != untouched)
            return 1;
    return 0;
}

static void exchange_on(MPI_Comm comm, int most, int form)
{
    int me, members, bad = 0, in_place = form & IN_PLACE, negative = form & NEGATIVE;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &members);
    int *sent = fresh((size_t)members * sizeof(int)), *received = fresh((size_t)members * sizeof(int));
    for (int of = 0; of < members; of++) {
        /* In place, two ranks send each other blocks of one size. */
        sent[of] = in_place ? uneven(me < of ? me : of, me < of ? of : me, most) : uneven(me, of, most);
        received[of] = in_place ? sent[of] : uneven(of, me, most);
    }
    struct blocks send = blocks_of(members, sent, form & STRIDED && me % 2 == 0 ? 2 : 1, negative);
    struct blocks receive = blocks_of(members, received, form & STRIDED && me % 3 == 0 ? 3 : 1, negative);
    struct blocks *first = in_place ? &receive : &send;
    for (int of = 0; of < members; of++)
        block(first, of, me, of, negative, 0);
    const void *from = in_place ? MPI_IN_PLACE : origin(&send, negative);
    CARRY_OUT(form, Alltoallv, alltoallv, from, send.counts, send.displacements, send.type, origin(&receive, negative),
              receive.counts, receive.displacements, receive.type, comm);
    for (int of = 0; of < members; of++)
        bad += block(&receive, of, of, me, negative, 1);
    CHECK(bad == 0);
    CHECK(!something_between(&receive));
    blocks_free(&send);
    blocks_free(&receive);
    free(sent);
    free(received);
}

static void even_exchange_on(MPI_Comm comm, int count, int form)
{
    int me, members, bad = 0, stride = form & STRIDED ? 2 : 1;
    if (form & NEGATIVE)
        return; /* there are no displacements */
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &members);
    size_t elements = (size_t)count * (size_t)members;
    int *send = fresh(elements * sizeof(int)), *receive = fresh(elements * (size_t)stride * sizeof(int));
    MPI_Datatype type = spread(stride);
    for (int at = 0; at < count * members; at++) {
        send[at] = exchanged_value(me, at / count, at % count);
        if (form & IN_PLACE)
            receive[at * stride] = send[at];
    }
    const void *from = form & IN_PLACE ? MPI_IN_PLACE : send;
    CARRY_OUT(form, Alltoall, alltoall, from, count, MPI_INT, receive, count, type, comm);
    for (int at = 0; at < count * members; at++)
        bad += receive[at * stride] != exchanged_value(at / count, me, at % count);
    CHECK(bad == 0);
    spread_free(&type);
    free(send);
    free(receive);
}

static void gather_uneven_on(MPI_Comm comm, int most, int form)
{
    int me, members, bad = 0, in_place = form & IN_PLACE, negative = form & NEGATIVE;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &members);
    int *counts = fresh((size_t)members * sizeof(int));
    for (int of = 0; of < members; of++)
        counts[of] = uneven(of, 1, most);
    struct blocks receive = blocks_of(members, counts, form & STRIDED && me % 2 == 0 ? 3 : 1, negative);
    struct blocks send = blocks_of(1, &counts[me], form & STRIDED && me % 3 == 0 ? 2 : 1, 0);
    block(in_place ? &receive : &send, in_place ? me : 0, me, 0, in_place ? negative : 0, 0);
    const void *from = in_place ? MPI_IN_PLACE : send.cells;
    CARRY_OUT(form, Allgatherv, allgatherv, from, counts[me], send.type, origin(&receive, negative), receive.counts,
              receive.displacements, receive.type, comm);
    for (int of = 0; of < members; of++)
        bad += block(&receive, of, of, 0, negative, 1);
    CHECK(bad == 0);
    CHECK(!something_between(&receive));
    blocks_free(&send);
    blocks_free(&receive);
    free(counts);
}

void in_every_form(void (*call)(MPI_Comm, int, int))
{
    static const int counts[] = {0, 3, 5000, 40000};
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int form = 0; form < FORMS; form++) {
            call(MPI_COMM_WORLD, counts[i], form);
            call(half, counts[i], form);
        }
    MPI_Comm_free(&half);
}

void uneven_gathers(void)
{
    in_every_form(gather_uneven_on);
}

void exchanges(void)
{
    in_every_form(exchange_on);
    in_every_form(even_exchange_on);
}

/* Gathers one element of each rank, of three cells and a gap. One element is plain memory; the blocks of all ranks are
 * not. */
static void padded_gather(int form, int turn)
{
    enum { CELLS = 4, DATA = 3 };
    int *cells = fresh((size_t)(CELLS * ranks) * sizeof *cells), bad = 0, root = turn % ranks;
    int *counts = fresh((size_t)ranks * sizeof *counts), *places = fresh((size_t)ranks * sizeof *places);
    int receives = form < 2 || rank == root;
    MPI_Datatype data, type;
    MPI_Request request;
    MPI_Type_contiguous(DATA, MPI_INT, &data);
    MPI_Type_create_resized(data, 0, CELLS * sizeof(int), &type);
    MPI_Type_commit(&type);
    for (int of = 0; of < ranks; of++) {
        counts[of] = 1;
        places[of] = of;
    }
    int *own = &cells[rank * CELLS];
    for (int at = 0; at < DATA; at++)
        own[at] = value(rank, at, turn);
    const void *send = receives ? MPI_IN_PLACE : own;
    if (form == 0)
        MPI_Iallgather(send, 1, type, cells, 1, type, MPI_COMM_WORLD, &request);
    else if (form == 1)
        MPI_Iallgatherv(send, 1, type, cells, counts, places, type, MPI_COMM_WORLD, &request);
    else if (form == 2)
        MPI_Igather(send, 1, type, cells, 1, type, root, MPI_COMM_WORLD, &request);
    else
        MPI_Igatherv(send, 1, type, cells, counts, places, type, root, MPI_COMM_WORLD, &request);
    CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    for (int of = 0; receives && of < ranks; of++) {
        for (int at = 0; at < DATA; at++)
            bad += cells[of * CELLS + at] != value(of, at, turn);
        bad += cells[of * CELLS + DATA] != (int)0xeeeeeeee;
    }
    CHECK(bad == 0);
    MPI_Type_free(&type);
    MPI_Type_free(&data);
    free(places);
    free(counts);
    free(cells);
}

void padded_gathers(void)
{
    for (int turn = 0; turn < 8; turn++)
        for (int form = 0; form < 4; form++)
            padded_gather(form, turn);
}
